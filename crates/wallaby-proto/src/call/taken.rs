//! What the answers of a call cost of its credit, connection by connection, as its initiator sees it.

/// What an answer costs besides its payload.
const ANSWER_COST: u64 = 64;

/// Most that an answer costs which a server need not count: small, or a status.
const MOST_UNCOUNTED: u64 = 8 * 1024;

/// The answers of one call that its initiator has not granted anew. Connections have numbers.
///
/// Each window may be overdrawn by one message, and a server need not count the one small answer to an initial request.
#[derive(Debug, Default)]
pub struct Answers {
    /// By connection, ascending.
    windows: Vec<(u64, Window)>,
}

#[derive(Debug)]
struct Window {
    /// What has come and was not granted anew.
    used: u64,
    /// How many messages had come over the connection before.
    since: u64,
    /// What the application took and is not granted yet: answers, and the bytes of their payloads.
    responses: u64,
    bytes: u64,
}

/// What a call may be sent before its application takes some of it.
#[derive(Debug, Clone, Copy)]
pub struct AnswerLimits {
    /// The window of a call.
    pub call: u64,
    /// Longest payload of a message.
    pub message: u64,
}

impl Answers {
    /// An answer with a payload of this size has come over a connection, which has carried as many messages as
    /// `messages` tells; `requests` tells how many initial requests the call has sent.
    ///
    /// # Errors
    ///
    /// If that was not granted. Then it says how many messages have come over the connection since the first of these
    /// answers: after [`crate::connection::MAX_CALLS`] of them an honest sender may have forgotten what it had sent.
    pub fn arrive(
        &mut self,
        connection: u64,
        payload: u64,
        limits: AnswerLimits,
        requests: impl Fn() -> u64,
        messages: impl Fn() -> u64,
    ) -> Result<(), u64> {
        let window = self.window(connection, &messages);
        window.used = window.used.saturating_add(payload + ANSWER_COST);
        let most = limits.call.saturating_add(limits.message + ANSWER_COST);
        if window.used <= most {
            return Ok(());
        }
        let uncounted = requests().saturating_mul(MOST_UNCOUNTED);
        if window.used <= most.saturating_add(uncounted) {
            return Ok(());
        }
        Err(messages().saturating_sub(window.since))
    }

    /// An answer is out of the way; what to grant for now, if that is worth at least so much: answers, and the bytes of
    /// their payloads.
    pub fn take(&mut self, connection: u64, payload: u64, worth: u64) -> Option<(u64, u64)> {
        let window = self.window(connection, &|| 0);
        window.responses += 1;
        window.bytes += payload;
        let cost = window.bytes + ANSWER_COST * window.responses;
        if cost < worth {
            return None;
        }
        window.used = window.used.saturating_sub(cost);
        Some((
            std::mem::take(&mut window.responses),
            std::mem::take(&mut window.bytes),
        ))
    }

    /// Most bytes that wait anywhere, for tests of who keeps to the rules.
    pub fn most_used(&self) -> u64 {
        let used = self.windows.iter().map(|(_, window)| window.used);
        used.max().unwrap_or_default()
    }

    fn window(&mut self, connection: u64, messages: &impl Fn() -> u64) -> &mut Window {
        let place = self.windows.partition_point(|known| known.0 < connection);
        if self
            .windows
            .get(place)
            .is_none_or(|known| known.0 != connection)
        {
            let window = Window {
                used: 0,
                since: messages(),
                responses: 0,
                bytes: 0,
            };
            self.windows.insert(place, (connection, window));
        }
        &mut self.windows[place].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AnswerLimits = AnswerLimits {
        call: 10_000,
        message: 1000,
    };

    #[test]
    fn the_window_one_message_and_the_uncounted_may_come() {
        for (requests, most) in [(0, 11_064), (1, 11_064 + 8192), (3, 11_064 + 3 * 8192)] {
            let mut answers = Answers::default();
            let came = (1..10_000)
                .find(|_| answers.arrive(7, 36, LIMITS, || requests, || 9).is_err())
                .expect("at some time");
            assert_eq!(came, most / 100 + 1);
        }
    }

    #[test]
    fn what_is_granted_may_come_again() {
        let mut answers = Answers::default();
        for round in 0..1000 {
            for connection in [3, 1, 2] {
                let arrived = answers.arrive(connection, 936, LIMITS, || 0, || round);
                assert_eq!(arrived, Ok(()));
                let granted = answers.take(connection, 936, 2500);
                assert_eq!(granted, (round % 3 == 2).then_some((3, 3 * 936)));
            }
        }
        assert!(answers.most_used() < 2500);
    }

    #[test]
    fn it_is_told_how_much_has_come_meanwhile() {
        let mut answers = Answers::default();
        assert_eq!(answers.arrive(1, 900, LIMITS, || 0, || 50), Ok(()));
        assert_eq!(answers.arrive(2, 900, LIMITS, || 0, || 1), Ok(()));
        assert_eq!(answers.arrive(1, 20_000, LIMITS, || 0, || 150), Err(100));
    }
}
