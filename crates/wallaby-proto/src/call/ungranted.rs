//! What the answers of a call cost of its credit, connection by connection, as its initiator sees it.

use crate::numbers::{MESSAGE_COST, SMALL_ANSWER};

/// Most that an answer costs which a server need not count: small, or a status.
const MOST_UNCOUNTED: u64 = 2 * SMALL_ANSWER as u64;

/// Answers that nobody has taken may come over connections that have ended since: so many times what one may bring.
const ENDED: u64 = 4;

/// Below so many connections none is looked for that has ended.
const FEW: usize = 4;

/// The answers of one call that its initiator has not granted anew. Connections have numbers.
///
/// Each window may be overdrawn by one message, and a server need not count the one small answer to an initial request.
#[derive(Debug, Default)]
pub(crate) struct UngrantedAnswers {
    /// By connection, ascending.
    windows: Vec<(u64, UngrantedWindow)>,
    /// How many of these were open when that was last asked.
    open: usize,
    /// What has come over connections that have ended and is not out of the way.
    ended: u64,
}

#[derive(Debug)]
struct UngrantedWindow {
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
pub(crate) struct AnswerLimits {
    /// The window of a call.
    pub call: u64,
    /// Longest payload of a message.
    pub message: u64,
}

impl UngrantedAnswers {
    /// An answer with a payload of this size has come over a connection, which has carried as many messages as
    /// `messages` tells; `requests` tells how many initial requests the call has sent, `is_open` whether a connection has
    /// not ended.
    ///
    /// # Errors
    ///
    /// If that was not granted. Then it says how many messages have come over the connection since the first of these
    /// answers: after [`crate::connection::MAX_CALLS`] of them an honest sender may have forgotten what it had sent.
    /// If too much came over connections that have ended, this one is not to blame: it says `u64::MAX`.
    pub(crate) fn arrive(
        &mut self,
        connection: u64,
        payload: u64,
        limits: AnswerLimits,
        requests: impl Fn() -> u64,
        messages: impl Fn() -> u64,
        is_open: impl Fn(u64) -> bool,
    ) -> Result<(), u64> {
        let before = self.windows.len();
        let window = self.window(connection, &messages);
        window.used = window.used.saturating_add(payload + MESSAGE_COST);
        let used = window.used;
        let since = window.since;
        let most = (limits.call.saturating_add(limits.message)).saturating_add(MESSAGE_COST);
        let most_of_all = || most.saturating_add(requests().saturating_mul(MOST_UNCOUNTED));
        if used > most && used > most_of_all() {
            return Err(messages().saturating_sub(since));
        }
        let is_new = self.windows.len() > before;
        if is_new && self.windows.len() >= FEW.max(2 * self.open) {
            self.forget_ended(is_open);
            if self.ended > most_of_all().saturating_mul(ENDED) {
                return Err(u64::MAX);
            }
        }
        Ok(())
    }

    /// Connections that have ended are counted together. So a peer that connects again and again gets no new window each time.
    #[cold]
    fn forget_ended(&mut self, is_open: impl Fn(u64) -> bool) {
        let ended = &mut self.ended;
        self.windows.retain(|(connection, window)| {
            let stays = is_open(*connection);
            if !stays {
                let taken = window.bytes + MESSAGE_COST * window.responses;
                *ended = ended.saturating_add(window.used.saturating_sub(taken));
            }
            stays
        });
        self.open = self.windows.len();
    }

    /// An answer is out of the way; what to grant for now, if that is worth at least so much: answers, and the bytes of
    /// their payloads.
    pub(crate) fn take(&mut self, connection: u64, payload: u64, worth: u64) -> Option<(u64, u64)> {
        let Ok(place) = self.place(connection) else {
            self.ended = self.ended.saturating_sub(payload + MESSAGE_COST);
            return None;
        };
        let window = &mut self.windows[place].1;
        window.responses += 1;
        window.bytes += payload;
        let cost = window.bytes + MESSAGE_COST * window.responses;
        if cost < worth {
            return None;
        }
        window.used = window.used.saturating_sub(cost);
        Some((
            std::mem::take(&mut window.responses),
            std::mem::take(&mut window.bytes),
        ))
    }

    /// The call has ended: nobody takes anything any more. What to grant for all that has come, so that servers that pass answers
    /// on do not keep those that are under way: connections, and bytes.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let windows = self.windows.iter_mut();
        windows.map(|(connection, window)| {
            (window.responses, window.bytes) = (0, 0);
            (*connection, std::mem::take(&mut window.used))
        })
    }

    fn window(&mut self, connection: u64, messages: &impl Fn() -> u64) -> &mut UngrantedWindow {
        let place = self.place(connection).unwrap_or_else(|place| {
            let window = UngrantedWindow {
                used: 0,
                since: messages(),
                responses: 0,
                bytes: 0,
            };
            self.windows.insert(place, (connection, window));
            place
        });
        &mut self.windows[place].1
    }

    fn place(&self, connection: u64) -> Result<usize, usize> {
        self.windows
            .binary_search_by_key(&connection, |(known, _)| *known)
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
            let mut answers = UngrantedAnswers::default();
            let came = (1..10_000)
                .find(|_| {
                    answers
                        .arrive(7, 36, LIMITS, || requests, || 9, |_| true)
                        .is_err()
                })
                .expect("at some time");
            assert_eq!(came, most / 100 + 1);
        }
    }

    #[test]
    fn who_limits_no_message_breaks_nothing() {
        let limits = AnswerLimits {
            message: u64::MAX,
            ..LIMITS
        };
        let mut answers = UngrantedAnswers::default();
        let arrived = answers.arrive(7, 1 << 20, limits, || 1, || 9, |_| true);
        assert_eq!(arrived, Ok(()));
    }

    #[test]
    fn what_is_granted_may_come_again() {
        let mut answers = UngrantedAnswers::default();
        for round in 0..1000 {
            for connection in [3, 1, 2] {
                let arrived = answers.arrive(connection, 936, LIMITS, || 0, || round, |_| true);
                assert_eq!(arrived, Ok(()));
                let granted = answers.take(connection, 936, 2500);
                assert_eq!(granted, (round % 3 == 2).then_some((3, 3 * 936)));
            }
        }
        assert!(answers.windows.iter().all(|(_, window)| window.used < 2500));
    }

    #[test]
    fn it_is_told_how_much_has_come_meanwhile() {
        let mut answers = UngrantedAnswers::default();
        let mut arrive = |connection, payload, messages| {
            answers.arrive(connection, payload, LIMITS, || 0, || messages, |_| true)
        };
        assert_eq!(arrive(1, 900, 50), Ok(()));
        assert_eq!(arrive(2, 900, 1), Ok(()));
        assert_eq!(arrive(1, 20_000, 150), Err(100));
    }

    #[test]
    fn who_connects_again_and_again_gets_only_so_much() {
        // Besides, that many connections stay open and bring nothing more.
        for open in [0, 1, 3, 100] {
            let mut answers = UngrantedAnswers::default();
            let mut came = 0;
            let mut arrive = |connection, payload| {
                let is_open = |known| known < open || known == connection;
                answers.arrive(connection, payload, LIMITS, || 1, || 9, is_open)
            };
            for connection in 0..open {
                arrive(connection, 0).expect("granted");
            }
            let one = LIMITS.call + LIMITS.message + MOST_UNCOUNTED + MESSAGE_COST;
            let refused = (open..).find_map(|connection| {
                let arrived = arrive(connection, one - MESSAGE_COST);
                came += one;
                arrived.err()
            });
            assert_eq!(refused, Some(u64::MAX), "no one connection is to blame");
            // What is not looked at yet: as many as are open, or a few.
            let most = (4 + 1 + open.max(4)) * one;
            assert!(came > 4 * one && came <= most, "{came} with {open} open");
        }
    }

    #[test]
    fn what_was_taken_of_ended_connections_counts_no_more() {
        let mut answers = UngrantedAnswers::default();
        for connection in 0..10_000 {
            for _ in 0..10 {
                let is_open = |known| known == connection;
                let arrived = answers.arrive(connection, 936, LIMITS, || 0, || 0, is_open);
                assert_eq!(arrived, Ok(()));
            }
            // The application is four connections late.
            if let Some(late) = connection.checked_sub(4) {
                for _ in 0..10 {
                    answers.take(late, 936, 2500);
                }
            }
        }
        assert!(answers.windows.len() <= FEW);
    }
}
