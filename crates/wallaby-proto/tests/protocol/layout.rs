//! A second reader of the wire format, written from `docs/protocol.md` and sharing no code with the crate: it names
//! every field of a frame.

use wallaby_proto::NodeId;
use wallaby_proto::wire::Link;

/// The fields of one frame: their bytes and what they say.
pub(crate) struct Layout<'a> {
    bytes: &'a [u8],
    position: usize,
    link: Link,
    /// A part is the first of its message: only its receiver's memory tells.
    begins: bool,
    pub(crate) fields: Vec<(Vec<u8>, String)>,
}

const REQUEST_FLAGS: [&str; 11] = [
    "direct",
    "place",
    "base",
    "manifest",
    "deadline",
    "oldest",
    "options",
    "address",
    "hashed",
    "traced",
    "compressed",
];
const RESPONSE_FLAGS: [&str; 10] = [
    "direct",
    "token",
    "place",
    "index",
    "last",
    "manifest",
    "status",
    "hop",
    "options",
    "compressed",
];
const PING_FLAGS: [&str; 4] = ["direct", "-", "abort", "missing"];
const PONG_FLAGS: [&str; 10] = [
    "direct",
    "token",
    "announced",
    "writing",
    "known",
    "finished",
    "aborted",
    "continued",
    "facts",
    "manifest",
];

impl<'a> Layout<'a> {
    /// The fields of `frame`, which travelled over `link` and, if it is a part, `begins` its message.
    pub(crate) fn of(frame: &'a [u8], link: Link, begins: bool) -> Vec<(Vec<u8>, String)> {
        let mut layout = Self {
            bytes: frame,
            position: 0,
            link,
            begins,
            fields: Vec::new(),
        };
        layout.frame();
        assert_eq!(
            layout.position,
            frame.len(),
            "fields and frame end together"
        );
        layout.fields
    }

    fn frame(&mut self) {
        let length =
            self.bytes[0] as usize | (self.bytes[1] as usize) << 8 | (self.bytes[2] as usize) << 16;
        assert_eq!(length + 4, self.bytes.len(), "the length counts the body");
        self.take(3, format!("length {length}"));
        let kind = self.bytes[3];
        match kind {
            0x01 => self.hello(),
            0x02 => self.method(),
            0x03 => self.credit(),
            0x04 => self.part(),
            0x05 => self.one("going away", "messages received"),
            0x06 => self.probe(),
            0x07 => self.call_credit(),
            0x08 => self.close(),
            0x10 => self.request(),
            0x11 => self.response(),
            0x12 => self.end(),
            0x13 => self.ping(),
            0x14 => self.pong(),
            0x15 => self.trace(),
            kind => panic!("frame kind {kind:#x}"),
        }
    }

    fn request(&mut self) {
        self.kind("request");
        let flags = self.flags(&REQUEST_FLAGS);
        self.call(flags & 1 != 0, self.link.sender);
        self.take(8, "reply token");
        if flags & 1 << 7 != 0 {
            self.address("reply address");
        }
        if flags & 1 << 1 != 0 {
            self.path("path");
            self.varint("hop");
            self.varint("depth");
        }
        if flags & 1 << 2 != 0 {
            self.varint("base");
        }
        self.manifest(flags & 1 << 3 != 0);
        if flags & 1 << 4 != 0 {
            self.duration("deadline");
        }
        if flags & 1 << 5 != 0 {
            self.varint("oldest live call, so many before this one");
        }
        self.options(flags & 1 << 6 != 0);
        if flags & 1 << 8 != 0 {
            self.take(8, "method hash");
        } else {
            self.varint("method number");
        }
        self.payload();
    }

    fn response(&mut self) {
        self.kind("response");
        let flags = self.flags(&RESPONSE_FLAGS);
        self.place(flags);
        if flags & 1 << 3 != 0 {
            self.varint("index");
        }
        self.manifest(flags & 1 << 5 != 0);
        self.options(flags & 1 << 8 != 0);
        self.payload();
    }

    fn end(&mut self) {
        self.kind("end");
        let flags = self.flags(&RESPONSE_FLAGS);
        self.place(flags);
        self.varint("requests sent");
        self.varint("responses sent");
        self.manifest(flags & 1 << 5 != 0);
        self.options(flags & 1 << 8 != 0);
    }

    fn ping(&mut self) {
        self.kind("ping");
        let flags = self.flags(&PING_FLAGS);
        self.call(flags & 1 != 0, self.link.sender);
        self.take(8, "reply token");
        self.path("path");
        self.varint("hop");
        self.varint("children from");
        if flags & 1 << 3 != 0 {
            for _ in 0..self.varint("number of missing responses") {
                self.varint("index");
            }
        }
    }

    fn pong(&mut self) {
        self.kind("pong");
        let flags = self.flags(&PONG_FLAGS);
        self.call(flags & 1 != 0, self.link.receiver);
        if flags & 1 << 1 != 0 {
            self.take(8, "reply token");
        }
        self.path("path");
        self.varint("hop");
        if flags & 1 << 4 == 0 {
            return;
        }
        self.varint("base");
        self.varint("count");
        for _ in 0..self.varint("number of children") {
            self.child("child");
        }
        if flags & 1 << 7 != 0 {
            self.child("continuation");
        }
        if flags & 1 << 8 != 0 {
            self.varint("requests sent");
            self.varint("responses sent");
        }
        self.manifest(flags & 1 << 9 != 0);
    }

    fn trace(&mut self) {
        self.kind("trace");
        let flags = self.flags(&["direct", "token"]);
        self.call(flags & 1 != 0, self.link.receiver);
        if flags & 1 << 1 != 0 {
            self.take(8, "reply token");
        }
        self.records();
    }

    fn hello(&mut self) {
        self.kind("hello");
        self.take(4, "magic");
        self.take(1, "lowest version");
        self.take(1, "highest version");
        self.take(8, "node");
        self.take(8, "expected node, 0 for any");
        self.optional_address("listens at");
        for limit in [
            "features",
            "limit: message",
            "limit: requests",
            "limit: call",
            "limit: parts",
            "limit: streams",
        ] {
            self.varint(limit);
        }
        let extensions = self.varint("length of extensions");
        self.take(extensions as usize, "extensions");
    }

    fn method(&mut self) {
        self.kind("method");
        self.varint("number");
        self.text("name");
        self.text("codec");
        self.take(8, "fingerprint of arguments");
        self.take(8, "fingerprint of answer");
    }

    fn credit(&mut self) {
        self.kind("credit");
        let window = if self.bytes[self.position] == 0 {
            "window: requests"
        } else {
            "window: parts"
        };
        self.take(1, window);
        self.varint("bytes");
    }

    fn call_credit(&mut self) {
        self.kind("call credit");
        self.take(8, "initiator");
        self.varint("sequence");
        self.varint("bytes");
    }

    fn part(&mut self) {
        self.kind("part");
        self.varint("stream");
        if self.begins {
            self.varint("total length");
            self.take(1, "kind of the message");
        }
        self.take(self.bytes.len() - self.position, "bytes of the message");
    }

    fn probe(&mut self) {
        self.kind("probe");
        self.take(1, "0 asks, 1 answers");
        self.varint("nonce");
    }

    fn close(&mut self) {
        self.kind("close");
        self.take(self.bytes.len() - self.position, "reason");
    }

    fn one(&mut self, kind: &str, field: &str) {
        self.kind(kind);
        self.varint(field);
    }

    fn kind(&mut self, name: &str) {
        self.take(1, format!("kind: {name}"));
    }

    fn flags(&mut self, names: &[&str]) -> u64 {
        let start = self.position;
        let flags = self.varint("");
        let set: Vec<&str> = names
            .iter()
            .enumerate()
            .filter(|(bit, _)| flags & 1 << bit != 0)
            .map(|(_, name)| *name)
            .collect();
        assert!(flags < 1 << names.len(), "only known flags");
        let label = if set.is_empty() {
            "flags: none".into()
        } else {
            format!("flags: {}", set.join(", "))
        };
        self.fields.pop();
        self.position = start;
        let len = self.bytes[start..]
            .iter()
            .position(|byte| *byte < 0x80)
            .expect("an end")
            + 1;
        self.take(len, label);
        flags
    }

    fn call(&mut self, direct: bool, assumed: NodeId) {
        if !direct {
            self.take(8, "initiator");
        }
        let whose = if direct {
            format!("sequence of {assumed}'s call")
        } else {
            "sequence".into()
        };
        self.varint(&whose);
    }

    fn place(&mut self, flags: u64) {
        self.call(flags & 1 != 0, self.link.receiver);
        if flags & 1 << 1 != 0 {
            self.take(8, "reply token");
        }
        if flags & 1 << 2 != 0 {
            self.path("path");
        }
        if flags & 1 << 7 != 0 {
            self.varint("hop");
        }
    }

    fn path(&mut self, label: &str) {
        match self.bytes[self.position] {
            0xff => self.take(17, format!("{label}: folded")),
            len => self.take(1 + len as usize, format!("{label}: {len} bytes of indexes")),
        };
    }

    fn manifest(&mut self, there: bool) {
        if !there {
            return;
        }
        match self.bytes[self.position] {
            0xff => {
                self.take(1, "manifest: owner named");
                self.path("owner");
            }
            levels => self.take(1, format!("manifest: owner {levels} levels up")),
        }
        self.varint("requests sent");
        self.varint("responses sent");
    }

    fn options(&mut self, there: bool) {
        if !there {
            return;
        }
        let end = self.varint("length of optional fields") as usize + self.position;
        while self.position < end {
            let tag = self.varint("tag");
            let len = self.varint("length") as usize;
            let field_end = self.position + len;
            match tag {
                2 => {
                    self.duration("ping period");
                    self.duration("ping timeout");
                }
                4 => {
                    for budget in ["requests", "responses", "bytes", "depth"] {
                        self.varint(&format!("budget: {budget}"));
                    }
                }
                6 => self.duration("age"),
                8 => self.duration("quiet"),
                10 => {
                    while self.position < field_end {
                        self.text("metadata key");
                        self.text("metadata value");
                    }
                }
                12 => self.records(),
                15 => drop(self.varint("attempt")),
                17 => self.take(len, "seal"),
                19 => self.take(len, "continuation"),
                21 => drop(self.varint("stream")),
                tag => panic!("optional field {tag}"),
            }
            assert_eq!(self.position, field_end, "field {tag} ends where it says");
        }
    }

    fn records(&mut self) {
        for _ in 0..self.varint("number of trace records") {
            self.path("path");
            self.varint("hop");
            self.take(8, "node");
            self.optional_address("server");
            self.text("method");
            self.varint("arrived");
            self.varint("queued");
            self.varint("ran");
        }
    }

    fn child(&mut self, label: &str) {
        self.address(label);
        let known = self.bytes[self.position] == 1;
        self.take(
            1,
            if known {
                "its node is known"
            } else {
                "its node is unknown"
            },
        );
        if known {
            self.take(8, "node");
        }
    }

    fn optional_address(&mut self, label: &str) {
        let there = self.bytes[self.position] == 1;
        self.take(
            1,
            if there {
                "an address follows"
            } else {
                "no address"
            },
        );
        if there {
            self.address(label);
        }
    }

    fn address(&mut self, label: &str) {
        let scheme = usize::from(self.bytes[self.position]);
        let name = [
            "tcp, IPv4",
            "tcp, IPv6",
            "udp, IPv4",
            "udp, IPv6",
            "unix",
            "mem",
        ][scheme];
        let len = match scheme {
            0 | 2 => 7,
            1 | 3 => 19,
            _ => 2 + self.bytes[self.position + 1] as usize,
        };
        self.take(len, format!("{label}: {name}"));
    }

    fn text(&mut self, label: &str) {
        let len = self.varint(&format!("length of {label}")) as usize;
        self.take(len, label);
    }

    fn duration(&mut self, label: &str) {
        let raw =
            u64::from(self.bytes[self.position]) << 8 | u64::from(self.bytes[self.position + 1]);
        self.take(
            2,
            format!("{label}: {} us", (raw % 2048) * (1 << (raw / 2048))),
        );
    }

    fn payload(&mut self) {
        self.take(self.bytes.len() - self.position, "payload");
    }

    fn varint(&mut self, label: &str) -> u64 {
        let rest = &self.bytes[self.position..];
        let len = rest
            .iter()
            .position(|byte| *byte < 0x80)
            .expect("a varint ends")
            + 1;
        let value = rest[..len]
            .iter()
            .rev()
            .fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
        self.take(len, format!("{label}: {value}"));
        value
    }

    fn take(&mut self, len: usize, label: impl Into<String>) {
        let bytes = self.bytes[self.position..self.position + len].to_vec();
        self.position += len;
        self.fields.push((bytes, label.into()));
    }
}
