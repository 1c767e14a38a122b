//! A second reader of datagrams: names every field, and shares nothing with the code's own.

/// The fields of a datagram: their bytes and what they say.
pub(crate) fn of(datagram: &[u8]) -> Vec<(Vec<u8>, String)> {
    let (body, checksum) = datagram.split_at(datagram.len() - 4);
    let mut layout = Layout {
        rest: body,
        fields: Vec::new(),
    };
    layout.datagram();
    assert!(layout.rest.is_empty(), "all of it is read");
    let mut fields = layout.fields;
    fields.push((checksum.to_vec(), "CRC32C of all before".into()));
    fields
}

struct Layout<'a> {
    rest: &'a [u8],
    fields: Vec<(Vec<u8>, String)>,
}

impl Layout<'_> {
    fn datagram(&mut self) {
        match self.rest[0] {
            0x01 => {
                self.take(1, "kind: ask");
                self.take(4, "\"WLBY\"");
                self.take(1, "lowest version");
                self.take(1, "highest version");
                self.take(8, "the client's session id");
                let all = self.rest.len() + 19;
                let label = format!("padding, to {all} bytes in all");
                self.take(self.rest.len(), &label);
            }
            0x02 => {
                self.take(1, "kind: challenge");
                self.take(8, "the client's session id");
                self.take(8, "the server's session id: the cookie");
                self.take(8, "when it was issued");
                self.hello();
            }
            0x03 => {
                self.take(1, "kind: open");
                self.take(8, "the server's session id: the cookie");
                self.take(8, "the client's session id");
                self.take(8, "when it was issued");
                self.hello();
                let flags = self.flags();
                self.packet(flags);
            }
            0x04 => {
                self.take(1, "kind: gone");
                self.take(8, "the session id");
                self.take(8, "the node that does not know it");
            }
            _ => {
                let flags = self.flags();
                self.take(8, "the receiver's session id");
                self.packet(flags);
            }
        }
    }

    fn hello(&mut self) {
        let len = self.varint("length of the hello");
        self.take(len as usize, "hello");
    }

    fn flags(&mut self) -> u8 {
        let flags = self.rest[0];
        assert_eq!(flags & 0xfc, 0x10, "a packet");
        let names = match flags & 0x03 {
            0 => "no flags",
            1 => "acknowledges",
            2 => "urgent",
            _ => "acknowledges, urgent",
        };
        self.take(1, &format!("kind: data, {names}"));
        flags
    }

    fn packet(&mut self, flags: u8) {
        self.varint("packet");
        if flags & 0x01 != 0 {
            self.ack();
        }
        while !self.rest.is_empty() {
            self.frame();
        }
    }

    fn ack(&mut self) {
        self.varint("acknowledges up to");
        self.take(2, "the newest waited so long");
        let more = self.varint("further ranges");
        self.varint("the first range goes down by");
        for _ in 0..more {
            self.varint("gap, less two");
            self.varint("the range goes down by");
        }
    }

    fn frame(&mut self) {
        match self.rest[0] {
            0x00 => self.take(1, "padding"),
            0x06 => self.take(1, "probe"),
            0x04 => {
                self.take(1, "piece");
                self.varint("of message");
                let kind = self.rest[0];
                self.take(1, &format!("which is a {}", name(kind)));
                self.varint("of so many bytes");
                self.varint("from this one on");
                let len = self.varint("length");
                self.take(len as usize, "bytes of it");
            }
            0x30 => {
                self.take(1, "request that introduces its method");
                self.varint("message");
                let len = self.varint("length") as usize;
                let end = self.rest.len() - len;
                self.text("name");
                self.text("codec");
                self.take(8, "fingerprint of the arguments");
                self.take(8, "fingerprint of the answer");
                self.take(self.rest.len() - end, "body of the request");
            }
            0x31 => {
                self.take(1, "request that tells the time");
                self.varint("message");
                let len = self.varint("length") as usize;
                let end = self.rest.len() - len;
                self.varint("microseconds");
                self.take(self.rest.len() - end, "body of the request");
            }
            kind => {
                self.take(1, name(kind));
                self.varint("message");
                let len = self.varint("length") as usize;
                self.take(len, &format!("body of the {}", name(kind)));
            }
        }
    }

    fn text(&mut self, what: &str) {
        let len = self.varint(&format!("length of the {what}")) as usize;
        let text = String::from_utf8_lossy(&self.rest[..len]).into_owned();
        self.take(len, &format!("{what}: {text}"));
    }

    fn varint(&mut self, what: &str) -> u64 {
        let mut value = 0;
        let mut len = 0;
        loop {
            let byte = self.rest[len];
            value |= u64::from(byte & 0x7f) << (7 * len);
            len += 1;
            if byte < 0x80 {
                break;
            }
        }
        self.take(len, &format!("{what}: {value}"));
        value
    }

    fn take(&mut self, len: usize, what: &str) {
        let (taken, rest) = self.rest.split_at(len);
        self.fields.push((taken.to_vec(), what.into()));
        self.rest = rest;
    }
}

fn name(kind: u8) -> &'static str {
    match kind {
        0x03 => "credit",
        0x05 => "going away",
        0x07 => "call credit",
        0x08 => "close",
        0x10 => "request",
        0x11 => "response",
        0x13 => "ping",
        kind => panic!("kind {kind:#04x}"),
    }
}
