//! Golden vectors: the bytes of every message, in `tests/vectors/`, checked both ways.

use bytes::{Bytes, BytesMut};
use wallaby_proto::wire::{LinkEnds, Message, MessageOptions};

use crate::golden;
use crate::protocol::frames;
use crate::protocol::layout::Layout;
use crate::protocol::samples::{self, Sample};

const FOLDER: &str = "vectors";

/// Runs of a byte at least this long are written as `61 * 32750`.
const RUN: usize = 64;

/// The frame that carries a message: length, kind, body.
pub(crate) fn frame(message: &Message, link: LinkEnds) -> Vec<u8> {
    let mut body = BytesMut::new();
    message.encode(&mut body, link);
    let mut frame = (body.len() as u32).to_le_bytes()[..3].to_vec();
    frame.push(kind(message));
    frame.extend_from_slice(&body);
    frame
}

/// The numbers of the kinds, as `docs/protocol.md` has them.
pub(crate) fn kind(message: &Message) -> u8 {
    match message {
        Message::Request(_) => 0x10,
        Message::Response(_) => 0x11,
        Message::End(_) => 0x12,
        Message::Ping(_) => 0x13,
        Message::Pong(_) => 0x14,
        Message::Trace(_) => 0x15,
    }
}

#[test]
fn every_message_has_its_bytes() {
    for Sample {
        name,
        about,
        link,
        message,
    } in samples::all()
    {
        let frame = frame(&message, link);
        golden::check(
            FOLDER,
            name,
            &file(about, &fields(&message), &frame, link, true),
        );
        let pinned = bytes_of_file(name);
        assert_eq!(
            pinned, frame,
            "{name}: encoding gives the bytes of the file"
        );
        let read = Message::decode(pinned[3], Bytes::copy_from_slice(&pinned[4..]), link);
        assert_eq!(
            read,
            Ok(message),
            "{name}: decoding the file gives the value"
        );
    }
}

#[test]
fn every_frame_of_a_connection_has_its_bytes() {
    for frames::Sample {
        name,
        about,
        link,
        begins,
        written,
        reader,
    } in frames::all()
    {
        let fields = [("does", reader.read(&written))];
        golden::check(FOLDER, name, &file(about, &fields, &written, link, begins));
        let pinned = bytes_of_file(name);
        assert_eq!(
            pinned, written,
            "{name}: a connection writes the bytes of the file"
        );
        assert_eq!(
            [("does", reader.read(&pinned))],
            fields,
            "{name}: a connection reads the file"
        );
    }
}

#[test]
fn no_vector_is_left_over() {
    let messages = samples::all();
    let connection = frames::all();
    let names: Vec<_> = messages
        .iter()
        .map(|sample| sample.name)
        .chain(connection.iter().map(|sample| sample.name))
        .collect();
    golden::check_folder(FOLDER, &names);
}

/// The text of a vector file.
fn file(
    about: &str,
    fields: &[(&str, String)],
    frame: &[u8],
    link: LinkEnds,
    begins: bool,
) -> String {
    let mut text = format!(
        "# {about}\n\n{:12} {} to {}\n",
        "from", link.sender, link.receiver
    );
    for (name, value) in fields {
        text += format!("{name:12} {value}").trim_end();
        text += "\n";
    }
    text += "\nbytes\n";
    for (bytes, label) in Layout::of(frame, link, begins) {
        text += &line(&bytes, &label);
    }
    text
}

/// The bytes of one field, eight in a line, and what they say.
fn line(bytes: &[u8], label: &str) -> String {
    let mut lines = String::new();
    let mut label = label;
    let mut rest = bytes;
    loop {
        let run = rest.iter().take_while(|byte| rest[0] == **byte).count();
        let (hex, taken) = if run >= RUN {
            (format!("{:02x} * {run}", rest[0]), run)
        } else {
            let taken = rest.len().min(8);
            (
                rest[..taken]
                    .iter()
                    .map(|byte| format!("{byte:02x} "))
                    .collect(),
                taken,
            )
        };
        lines += format!("  {:26}{label}", hex.trim_end()).trim_end();
        lines += "\n";
        (rest, label) = (&rest[taken..], "");
        if rest.is_empty() {
            return lines;
        }
    }
}

/// The bytes that a vector file pins.
fn bytes_of_file(name: &str) -> Vec<u8> {
    let text = golden::read(FOLDER, name);
    let (_, lines) = text
        .split_once("\nbytes\n")
        .expect("a line that says bytes");
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let hex = line.get(2..28).unwrap_or(line).trim();
        let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two hex digits");
        match hex.split_once(" * ") {
            Some((one, run)) => bytes.extend(vec![byte(one); run.parse().expect("a number")]),
            None => bytes.extend(hex.split_whitespace().map(byte)),
        }
    }
    bytes
}

fn fields(message: &Message) -> Vec<(&'static str, String)> {
    let mut fields = vec![("call", message.call().to_string())];
    let distance = match message {
        Message::Response(response) => response.distance,
        Message::End(end) => end.distance,
        Message::Pong(pong) => pong.distance,
        Message::Trace(report) => report.distance,
        Message::Request(_) | Message::Ping(_) => 0,
    };
    fields.extend((distance > 0).then(|| ("distance", distance.to_string())));
    match message {
        Message::Request(request) => {
            fields.push(("request", request.id.to_string()));
            fields.push(("depth", request.depth.to_string()));
            fields.push(("base", request.base.to_string()));
            fields.push(("reply to", format!("{:?}", request.reply_to)));
            fields.extend(
                request
                    .manifest
                    .map(|manifest| ("manifest", format!("{manifest:?}"))),
            );
            fields.extend(
                request
                    .deadline
                    .map(|deadline| ("deadline", format!("{deadline:?}"))),
            );
            fields.push(("oldest", request.oldest.to_string()));
            fields.push(("traced", request.traced.to_string()));
            fields.push(("compressed", request.compressed.to_string()));
            fields.extend(request.options.as_deref().map(options));
            fields.push(("method", format!("{:?}", request.method)));
            fields.push(("payload", format!("{:?}", request.payload)));
        }
        Message::Response(response) => {
            fields.push(("token", format!("{:?}", response.token)));
            fields.push(("request", response.request.to_string()));
            fields.push(("index", response.index.to_string()));
            fields.push(("last", response.last.to_string()));
            fields.extend(
                response
                    .manifest
                    .map(|manifest| ("manifest", format!("{manifest:?}"))),
            );
            fields.push(("status", response.status.to_string()));
            fields.push(("compressed", response.compressed.to_string()));
            fields.extend(response.options.as_deref().map(options));
            fields.push(("payload", format!("{:?}", response.payload)));
        }
        Message::End(end) => {
            fields.push(("token", format!("{:?}", end.token)));
            fields.push(("request", end.request.to_string()));
            fields.push(("facts", format!("{:?}", end.facts)));
            fields.extend(
                end.manifest
                    .map(|manifest| ("manifest", format!("{manifest:?}"))),
            );
        }
        Message::Ping(ping) => {
            fields.push(("request", ping.request.to_string()));
            fields.push(("abort", ping.abort.to_string()));
            fields.push(("children", format!("from {}", ping.children_from)));
            fields.push(("missing", format!("{:?}", ping.missing)));
        }
        Message::Pong(pong) => {
            fields.push(("token", format!("{:?}", pong.token)));
            fields.push(("request", pong.request.to_string()));
            fields.push(("attempt", pong.attempt.to_string()));
            fields.push(("announced", pong.announced.to_string()));
            fields.push(("writing", pong.writing.to_string()));
            fields.push(("evicted", pong.evicted.to_string()));
            fields.extend(pong.gone.then(|| ("gone", "true".to_owned())));
            fields.extend((pong.heartbeats).then(|| ("heartbeats", "true".to_owned())));
            fields.push(("progress", format!("{:?}", pong.progress)));
        }
        Message::Trace(report) => {
            fields.push(("token", format!("{:?}", report.token)));
            fields.push(("records", format!("{:?}", report.records)));
        }
    }
    fields
}

fn options(options: &MessageOptions) -> (&'static str, String) {
    ("options", format!("{options:?}"))
}
