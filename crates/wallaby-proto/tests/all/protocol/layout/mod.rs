//! A second reader of the wire format, written from `docs/protocol.md` and sharing no code with the crate: it names
//! every field of a frame.

mod fields;

use wallaby_proto::wire::LinkEnds;

/// The fields of one frame: their bytes and what they say.
pub(crate) struct Layout<'a> {
    bytes: &'a [u8],
    position: usize,
    link: LinkEnds,
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
const PING_FLAGS: [&str; 5] = ["direct", "-", "abort", "missing", "shows"];
const PONG_FLAGS: [&str; 17] = [
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
    "attempt",
    "evicted",
    "idle",
    "lost",
    "handled by",
    "gone",
    "heartbeats",
];

impl<'a> Layout<'a> {
    /// The fields of `frame`, which travelled over `link` and, if it is a part, `begins` its message.
    pub(crate) fn of(frame: &'a [u8], link: LinkEnds, begins: bool) -> Vec<(Vec<u8>, String)> {
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
            0x05 => self.going_away(),
            0x06 => self.probe(),
            0x07 => self.call_credit(),
            0x08 => self.close(),
            0x09 => self.body(),
            0x0a => self.body_credit(),
            0x0b => self.one("time", "microseconds"),
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
        if flags & 1 != 0 {
            let sender = self.link.sender;
            self.varint(&format!(
                "{sender}'s call, so many after its latest, folded"
            ));
        } else {
            self.call(false, self.link.sender);
        }
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
            match flags & 1 != 0 {
                true => self.duration("deadline"),
                false => {
                    self.varint("deadline, us");
                }
            }
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
        self.destination(flags & 1 != 0);
        if flags & 1 << 1 != 0 {
            self.take(8, "reply token");
        }
        self.path("path");
        self.varint("hop");
        if flags & 1 << 10 != 0 {
            self.varint("attempt");
        }
        if flags & 1 << 4 == 0 {
            return;
        }
        self.varint("base");
        self.varint("count");
        let children = self.varint("number of children");
        if children > 0 {
            self.varint("number of the first one");
        }
        for _ in 0..children {
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
        if flags & 1 << 12 != 0 {
            self.duration("since it last made progress");
        }
        if flags & 1 << 13 != 0 {
            for _ in 0..self.varint("number of lost responses") {
                self.varint("index");
            }
        }
        if flags & 1 << 14 != 0 {
            self.handled_by();
        }
    }

    fn trace(&mut self) {
        self.kind("trace");
        let flags = self.flags(&["direct", "token"]);
        self.destination(flags & 1 != 0);
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

    fn going_away(&mut self) {
        self.one("going away", "messages received");
        if self.position < self.bytes.len() {
            self.varint("closed, and so many bytes handled");
        }
    }

    fn probe(&mut self) {
        self.kind("probe");
        self.take(1, "0 asks, 1 answers");
        self.varint("nonce");
    }

    fn body(&mut self) {
        self.kind("body");
        self.varint("number");
        let state = ["0: more", "1: whole", "2: broken"];
        let state = state[usize::from(self.bytes[self.position])];
        self.take(1, state);
        let left = self.bytes.len() - self.position;
        if left > 0 {
            self.take(left, "bytes of the body, or why it is broken");
        }
    }

    fn body_credit(&mut self) {
        self.kind("body credit");
        self.varint("number");
        if self.bytes[self.position] == 0 {
            self.take(1, "0: more");
            self.varint("bytes");
        } else {
            self.take(1, "1: stop");
        }
    }

    fn close(&mut self) {
        self.kind("close");
        self.take(self.bytes.len() - self.position, "reason");
    }
}
