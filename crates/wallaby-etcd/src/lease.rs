//! A server that is written down as long as it lives.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::EtcdError;
use crate::api::{Api, PATIENCE};
use crate::resolver::on_a_thread;

/// The shortest life of what is written down.
const SHORTEST: Duration = Duration::from_secs(2);

/// A server in etcd: see [`Etcd::register`](crate::Etcd::register). Dropping it takes the server out, without waiting for that.
///
/// A thread says that it is still there. While etcd cannot be reached it tries again; if the server was forgotten meanwhile, or
/// somebody has removed its key, it is written down anew.
#[derive(Debug)]
pub struct Lease {
    key: String,
    /// Its thread ends with this.
    _alive: Sender<()>,
}

impl Lease {
    pub(crate) async fn begin(
        api: Arc<Api>,
        key: String,
        value: String,
        life: Duration,
    ) -> Result<Self, EtcdError> {
        let life = life.max(SHORTEST);
        let (alive, ended) = mpsc::channel();
        let written = Written {
            api,
            key: key.clone(),
            value,
            life,
        };
        let (written, lease) = on_a_thread(move || {
            let lease = written.write()?;
            Ok((written, lease))
        })
        .await?;
        let keeping = move || {
            let mut lease = lease;
            while ended.recv_timeout(life / 3) == Err(RecvTimeoutError::Timeout) {
                written.keep(&mut lease);
            }
            if let Err(error) = written.api.revoke(&lease) {
                tracing::warn!(key = written.key, %error, "a server stays in etcd until its time is over");
            }
        };
        let thread = thread::Builder::new().name("wallaby-etcd".into());
        let begun = thread.spawn(keeping);
        begun.map_err(|error| EtcdError::Unreachable {
            member: "any member".into(),
            why: error.to_string(),
        })?;
        Ok(Self { key, _alive: alive })
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// What is written down.
struct Written {
    api: Arc<Api>,
    key: String,
    value: String,
    life: Duration,
}

impl Written {
    /// Writes it under a new lease.
    fn write(&self) -> Result<String, EtcdError> {
        let lease = self.api.grant(self.life.as_secs())?;
        self.api.put(&self.key, &self.value, &lease)?;
        Ok(lease)
    }

    fn keep(&self, lease: &mut String) {
        // The first third of its life is over. In the second all members can be asked, though others of them hang.
        let most = PATIENCE.min(self.life / 3 / self.api.members());
        let kept = match self.api.keep_alive(lease, most) {
            Ok(true) => (self.api).put_if_gone(&self.key, &self.value, lease, most),
            Ok(false) => self.write().map(|new| *lease = new),
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::warn!(key = self.key, %error, "etcd was not told that a server is still there");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn members_that_do_not_answer_cost_no_lease() {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let members = [listen(), listen(), listen()]; // of the first two the system takes what comes, and nobody answers
        let url = |member: &TcpListener| {
            let at = member.local_addr().expect("it is bound");
            format!("http://{at}")
        };
        let etcd = crate::Etcd::new(members.iter().map(url)).expect("three members");
        let [_, _, third] = &members;
        let life = SHORTEST;
        thread::scope(|scope| {
            scope.spawn(move || {
                for stream in third.incoming().take(2) {
                    let mut stream = stream.expect("it is asked");
                    let mut byte = [0];
                    while byte != *b"}" {
                        stream.read_exact(&mut byte).expect("a request");
                    }
                    let kept = r#"{"result":{"TTL":"2"}}"#;
                    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
                    write!(stream, "{head}{kept}").expect("it is there");
                }
            });
            let begun = Instant::now();
            let written = Written {
                api: etcd.api,
                key: "a/b".into(),
                value: "c".into(),
                life,
            };
            written.keep(&mut "1".to_owned());
            assert!(begun.elapsed() < life * 2 / 3, "the rest of its life");
        });
    }
}
