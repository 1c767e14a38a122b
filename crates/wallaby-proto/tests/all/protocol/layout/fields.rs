//! The fields that messages are made of.

use wallaby_proto::NodeId;

use super::Layout;

impl Layout<'_> {
    pub(super) fn one(&mut self, kind: &str, field: &str) {
        self.kind(kind);
        self.varint(field);
    }

    pub(super) fn kind(&mut self, name: &str) {
        self.take(1, format!("kind: {name}"));
    }

    pub(super) fn flags(&mut self, names: &[&str]) -> u64 {
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

    pub(super) fn call(&mut self, direct: bool, assumed: NodeId) {
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

    /// The call of a message for its initiator.
    pub(super) fn destination(&mut self, direct: bool) {
        if !direct {
            self.take(8, "initiator");
            self.varint("distance");
        }
        let whose = match direct {
            true => format!("sequence of {}'s call", self.link.receiver),
            false => "sequence".into(),
        };
        self.varint(&whose);
    }

    pub(super) fn place(&mut self, flags: u64) {
        self.destination(flags & 1 != 0);
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

    pub(super) fn path(&mut self, label: &str) {
        match self.bytes[self.position] {
            0xff => self.take(17, format!("{label}: folded")),
            len => self.take(1 + len as usize, format!("{label}: {len} bytes of indexes")),
        };
    }

    pub(super) fn manifest(&mut self, there: bool) {
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

    pub(super) fn options(&mut self, there: bool) {
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
                16 => self.handled_by(),
                17 => self.take(len, "seal"),
                18 => self.text("method"),
                19 => self.take(len, "continuation"),
                20 => {
                    self.duration("heartbeats: period");
                    self.duration("heartbeats: timeout");
                    self.duration("heartbeats: hop");
                }
                21 => drop(self.varint("body")),
                14 | 23 => {}
                27 => {
                    self.take(8, "durable: client");
                    for number in ["sequence", "lease", "acknowledged"] {
                        self.varint(&format!("durable: {number}"));
                    }
                    if self.position < field_end {
                        self.take(16, "durable: branch");
                    }
                }
                25 => {
                    while self.position < field_end {
                        self.text("metadata key");
                        let len = self.varint("length of metadata bytes") as usize;
                        self.take(len, "metadata bytes");
                    }
                }
                tag => panic!("optional field {tag}"),
            }
            assert_eq!(self.position, field_end, "field {tag} ends where it says");
        }
    }

    pub(super) fn handled_by(&mut self) {
        self.take(8, "node");
        self.optional_address("server");
        self.text("method");
    }

    pub(super) fn records(&mut self) {
        for _ in 0..self.varint("number of trace records") {
            self.path("path");
            self.varint("hop");
            self.handled_by();
            self.varint("arrived");
            self.varint("queued");
            self.varint("ran");
            for _ in 0..self.varint("number of parts") {
                self.text("part");
                self.varint("took");
            }
        }
    }

    pub(super) fn child(&mut self, label: &str) {
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

    pub(super) fn optional_address(&mut self, label: &str) {
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

    pub(super) fn address(&mut self, label: &str) {
        let scheme = usize::from(self.bytes[self.position]);
        let name = [
            "tcp, IPv4",
            "tcp, IPv6",
            "udp, IPv4",
            "udp, IPv6",
            "unix",
            "mem",
            "shm",
            "another scheme",
        ][scheme];
        let text = |at: usize| 1 + self.bytes[self.position + at] as usize;
        let len = match scheme {
            0 | 2 => 7,
            1 | 3 => 19,
            7 => 1 + text(1) + text(1 + text(1)),
            _ => 2 + self.bytes[self.position + 1] as usize,
        };
        self.take(len, format!("{label}: {name}"));
    }

    pub(super) fn text(&mut self, label: &str) {
        let len = self.varint(&format!("length of {label}")) as usize;
        self.take(len, label);
    }

    pub(super) fn duration(&mut self, label: &str) {
        let raw =
            u64::from(self.bytes[self.position]) << 8 | u64::from(self.bytes[self.position + 1]);
        self.take(
            2,
            format!("{label}: {} us", (raw % 2048) * (1 << (raw / 2048))),
        );
    }

    pub(super) fn payload(&mut self) {
        self.take(self.bytes.len() - self.position, "payload");
    }

    pub(super) fn varint(&mut self, label: &str) -> u64 {
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

    pub(super) fn take(&mut self, len: usize, label: impl Into<String>) {
        let bytes = self.bytes[self.position..self.position + len].to_vec();
        self.position += len;
        self.fields.push((bytes, label.into()));
    }
}
