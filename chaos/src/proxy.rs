//! A lossy stretch of network in front of one UDP address: datagrams are dropped, doubled, overtaken and damaged.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use wallaby_bench::random::Random;

use crate::control::{Announcement, Health, Instruction, Losses, announce};
use crate::process::Instructions;

/// Senders that are told apart at a time; the one that was known for longest makes room.
const MOST_SENDERS: usize = 256;
/// A datagram that waits to be overtaken by a later one leaves after this long all the same.
const HELD: Duration = Duration::from_millis(2);

struct Proxy {
    target: SocketAddr,
    losses: Losses,
    chance: Mutex<Chance>,
}

struct Chance {
    random: Random,
    counted: BTreeMap<&'static str, u64>,
}

/// What becomes of a datagram.
struct Fate {
    copies: u8,
    late: bool,
}

/// Passes datagrams between `front` and `target` until the director has gone.
pub(crate) async fn pass(front: &str, target: &str, losses: Losses, seed: u64) -> Result<()> {
    let front = UdpSocket::bind(front)
        .await
        .with_context(|| format!("can't listen at {front}"))?;
    let proxy = Arc::new(Proxy {
        target: target.parse()?,
        losses,
        chance: Mutex::new(Chance {
            random: Random::new(seed),
            counted: BTreeMap::new(),
        }),
    });
    tokio::spawn(Arc::clone(&proxy).forth(Arc::new(front)));
    let mut instructions = Instructions::new();
    announce(&Announcement::Ready)?;
    while let Some(instruction) = instructions.next().await? {
        match instruction {
            Instruction::Report => announce(&Announcement::Health(Health {
                counted: proxy.counted(),
                ..Health::default()
            }))?,
            other => bail!("a proxy can't {other:?}"),
        }
    }
    Ok(())
}

impl Proxy {
    /// From everybody to the target; each sender gets a socket of its own, by which answers find back.
    async fn forth(self: Arc<Self>, front: Arc<UdpSocket>) {
        let mut ways: HashMap<SocketAddr, (Arc<UdpSocket>, tokio::task::AbortHandle, u64)> =
            HashMap::new();
        let mut buffer = vec![0; 65_536];
        for turn in 0.. {
            // An error tells of an earlier datagram that nobody wanted.
            let Ok((len, from)) = front.recv_from(&mut buffer).await else {
                continue;
            };
            if !ways.contains_key(&from) {
                let Ok(back) = UdpSocket::bind((self.target.ip(), 0)).await else {
                    continue;
                };
                let back = Arc::new(back);
                let work = Arc::clone(&self).back(Arc::clone(&back), Arc::clone(&front), from);
                if ways.len() == MOST_SENDERS {
                    let oldest = ways.iter().min_by_key(|(_, (_, _, turn))| *turn);
                    let oldest = oldest.map(|(from, _)| *from);
                    if let Some((_, work, _)) = oldest.and_then(|oldest| ways.remove(&oldest)) {
                        work.abort();
                    }
                }
                ways.insert(from, (back, tokio::spawn(work).abort_handle(), turn));
            }
            if let Some((back, _, _)) = ways.get(&from) {
                self.send(&buffer[..len], back, self.target).await;
            }
        }
    }

    async fn back(self: Arc<Self>, back: Arc<UdpSocket>, front: Arc<UdpSocket>, to: SocketAddr) {
        let mut buffer = vec![0; 65_536];
        loop {
            if let Ok((len, _)) = back.recv_from(&mut buffer).await {
                self.send(&buffer[..len], &front, to).await;
            }
        }
    }

    async fn send(&self, datagram: &[u8], socket: &Arc<UdpSocket>, to: SocketAddr) {
        let mut datagram = datagram.to_vec();
        let fate = self.fate(&mut datagram);
        if fate.late {
            let socket = Arc::clone(socket);
            tokio::spawn(async move {
                tokio::time::sleep(HELD).await;
                for _ in 0..fate.copies {
                    let _ = socket.send_to(&datagram, to).await; // a datagram may always be lost
                }
            });
            return;
        }
        for _ in 0..fate.copies {
            let _ = socket.send_to(&datagram, to).await;
        }
    }

    fn fate(&self, datagram: &mut [u8]) -> Fate {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let losses = self.losses;
        let mut fate = Fate {
            copies: 1,
            late: false,
        };
        chance.count("passed");
        if chance.happens(losses.dropped, "dropped") {
            fate.copies = 0;
            return fate;
        }
        if chance.happens(losses.duplicated, "duplicated") {
            fate.copies = 2;
        }
        fate.late = chance.happens(losses.reordered, "reordered");
        if !datagram.is_empty() && chance.happens(losses.corrupted, "corrupted") {
            let place = chance.random.below(datagram.len());
            datagram[place] ^= 1 << chance.random.below(8);
        }
        fate
    }

    fn counted(&self) -> BTreeMap<String, u64> {
        let chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = chance.counted.iter();
        counted
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }
}

impl Chance {
    fn happens(&mut self, per_mille: u32, what: &'static str) -> bool {
        let happens = self.random.per_mille(per_mille);
        if happens {
            self.count(what);
        }
        happens
    }

    fn count(&mut self, what: &'static str) {
        *self.counted.entry(what).or_default() += 1;
    }
}
