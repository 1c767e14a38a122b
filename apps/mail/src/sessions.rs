//! Who is logged in, and who has tried too often to be. Time is an argument.

use crate::secret::{Print, Token};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long sessions live, and how often passwords may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// From the login on.
    pub(crate) longest: Duration,
    /// From the latest use on.
    pub(crate) idle: Duration,
    /// Of one user at a time; with one more, the oldest ends.
    pub(crate) sessions: usize,
    /// Of one name, by one host, in a [window](Self::window).
    pub(crate) wrong_for_name: u32,
    /// Of any names, by one host, in a window.
    pub(crate) wrong_for_host: u32,
    /// From the first wrong one on.
    pub(crate) window: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(12 * 3600),
            idle: Duration::from_secs(3600),
            sessions: 16,
            wrong_for_name: 5,
            wrong_for_host: 50,
            window: Duration::from_secs(15 * 60),
        }
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions(HashMap<Print, Session>);

#[derive(Debug)]
struct Session {
    user: String,
    begun: Instant,
    used: Instant,
}

impl Sessions {
    /// Begins one.
    pub(crate) fn begin(&mut self, token: &Token, user: &str, rules: &Rules, now: Instant) {
        self.0.retain(|_, session| session.lives(rules, now));
        let of_user = self.0.iter().filter(|(_, session)| session.user == user);
        if of_user.clone().count() >= rules.sessions {
            let oldest = of_user.min_by_key(|(_, session)| session.begun);
            if let Some(oldest) = oldest.map(|(print, _)| *print) {
                self.0.remove(&oldest);
            }
        }
        let session = Session {
            user: user.to_owned(),
            begun: now,
            used: now,
        };
        self.0.insert(token.print(), session);
    }

    /// Whose it is, which uses it.
    pub(crate) fn user(&mut self, token: &Token, rules: &Rules, now: Instant) -> Option<String> {
        let session = self.0.get_mut(&token.print())?;
        if !session.lives(rules, now) {
            return None;
        }
        session.used = now;
        Some(session.user.clone())
    }

    /// Ends one.
    pub(crate) fn end(&mut self, token: &Token) {
        self.0.remove(&token.print());
    }
}

impl Session {
    fn lives(&self, rules: &Rules, now: Instant) -> bool {
        now.duration_since(self.begun) < rules.longest && now.duration_since(self.used) < rules.idle
    }
}

/// Logins that have failed, or are being looked at.
#[derive(Debug, Default)]
pub(crate) struct Attempts(HashMap<(String, String), (u32, Instant)>);

impl Attempts {
    /// So many names and hosts are known at most; with more, nobody new may try before the window of others is over.
    const MOST: usize = 100_000;

    /// One more, which counts as wrong until it is [right](Self::right); or how long to wait before it.
    pub(crate) fn begin(
        &mut self,
        name: &str,
        host: &str,
        rules: &Rules,
        now: Instant,
    ) -> Result<(), Duration> {
        let left = |since: Instant| rules.window.saturating_sub(now.duration_since(since));
        let limits = [
            (name, host, rules.wrong_for_name),
            ("", host, rules.wrong_for_host),
        ];
        if self.0.len() + limits.len() > Self::MOST {
            self.0.retain(|_, (_, since)| !left(*since).is_zero());
            if self.0.len() + limits.len() > Self::MOST {
                return Err(rules.window);
            }
        }
        let limits = limits.map(|(name, host, most)| ((name.to_owned(), host.to_owned()), most));
        for (key, most) in &limits {
            if let Some((wrong, since)) = self.0.get(key)
                && wrong >= most
                && !left(*since).is_zero()
            {
                return Err(left(*since));
            }
        }
        for (key, _) in limits {
            let (wrong, since) = self.0.entry(key).or_insert((0, now));
            if left(*since).is_zero() {
                (*wrong, *since) = (0, now);
            }
            *wrong += 1;
        }
        Ok(())
    }

    /// It was right: the name begins anew, and of the host it does not count.
    pub(crate) fn right(&mut self, name: &str, host: &str) {
        self.0.remove(&(name.to_owned(), host.to_owned()));
        if let Some((wrong, _)) = self.0.get_mut(&(String::new(), host.to_owned())) {
            *wrong = wrong.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sessions_end_when_they_are_old_unused_or_ended() {
        let rules = Rules {
            longest: SECOND * 10,
            idle: SECOND * 4,
            sessions: 2,
            ..Rules::default()
        };
        let (mut sessions, begun) = (Sessions::default(), Instant::now());
        let tokens = [(); 4].map(|()| Token::draw().unwrap());
        sessions.begin(&tokens[0], "anna", &rules, begun);
        for later in [3, 6, 9] {
            let user = sessions.user(&tokens[0], &rules, begun + SECOND * later);
            assert_eq!(user.as_deref(), Some("anna"), "used after {later} s");
        }
        assert_eq!(sessions.user(&tokens[0], &rules, begun + SECOND * 10), None);

        sessions.begin(&tokens[1], "anna", &rules, begun + SECOND * 20);
        assert_eq!(sessions.0.len(), 1, "old ones are forgotten");
        let now = begun + SECOND * 24;
        assert_eq!(sessions.user(&tokens[1], &rules, now), None, "unused");

        sessions.begin(&tokens[1], "anna", &rules, now);
        sessions.begin(&tokens[2], "ben", &rules, now);
        sessions.begin(&tokens[2], "anna", &rules, now + SECOND);
        sessions.begin(&tokens[3], "anna", &rules, now + SECOND);
        let now = now + SECOND;
        assert_eq!(sessions.user(&tokens[1], &rules, now), None, "one too many");
        assert!(sessions.user(&tokens[3], &rules, now).is_some());
        sessions.end(&tokens[3]);
        assert_eq!(sessions.user(&tokens[3], &rules, now), None);
    }

    #[test]
    fn who_is_wrong_too_often_waits() {
        let rules = Rules {
            wrong_for_name: 2,
            wrong_for_host: 4,
            window: SECOND * 10,
            ..Rules::default()
        };
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        let mut begin =
            |name, host, later: u32| attempts.begin(name, host, &rules, now + SECOND * later);
        assert_eq!(begin("anna", "home", 0), Ok(()));
        assert_eq!(begin("anna", "home", 1), Ok(()));
        assert_eq!(begin("anna", "home", 2), Err(SECOND * 8));
        assert_eq!(
            begin("anna", "elsewhere", 2),
            Ok(()),
            "she is not locked out"
        );
        assert_eq!(begin("ben", "home", 2), Ok(()));
        assert_eq!(begin("carl", "home", 2), Ok(()));
        assert_eq!(
            begin("dora", "home", 3),
            Err(SECOND * 7),
            "one host, any names"
        );
        assert_eq!(begin("anna", "home", 10), Ok(()), "a window later");

        let mut attempts = Attempts::default();
        for _ in 0..20 {
            attempts.begin("anna", "home", &rules, now).unwrap();
            attempts.right("anna", "home");
        }
    }
}
