//! How much may wait to be sent, or to be acknowledged, before a message is refused.

use crate::wire::Message;

/// Over streams, messages with credit are refused while more than this waits, whatever the setting.
pub(crate) const OUTPUT_LIMIT: usize = 256 * 1024;

/// For what there must be room: the first is refused first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Requests and answers that need credit.
    Credited,
    /// Pings and trace reports: who gets no answer asks again.
    Question,
    /// Pongs.
    Report,
    /// What nobody asks for again: ends, and answers that need no credit.
    Needed,
}

impl Priority {
    /// That of a message without credit.
    pub(crate) fn of(message: &Message) -> Self {
        match message {
            Message::Ping(_) | Message::Trace(_) => Self::Question,
            Message::Pong(_) => Self::Report,
            _ => Self::Needed,
        }
    }
}

/// How many bytes may wait before messages of each priority are refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputLimit([usize; 4]);

impl OutputLimit {
    /// Of a stream, which is not read any more while `most` waits. Questions, and what answers them, are refused before, so that
    /// two sides that have much to ask each other do not both stop reading.
    pub(crate) fn of_stream(most: usize) -> Self {
        Self([
            OUTPUT_LIMIT.min(most / 4),
            most - most / 4,
            most - most / 8,
            most,
        ])
    }

    /// Of a session over datagrams, which is always read. `credited` is as much as should be under way, and as much again is for
    /// messages without credit.
    pub(crate) fn of_session(credited: usize) -> Self {
        let most = credited.saturating_mul(2);
        Self([credited, most, most, most])
    }

    /// Whether a message is refused while so much waits.
    #[inline]
    pub(crate) fn is_reached(&self, priority: Priority, waiting: usize) -> bool {
        waiting > self.0[priority as usize]
    }
}
