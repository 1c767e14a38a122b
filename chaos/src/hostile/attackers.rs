//! The process of a hostile client or server: does all that it is told at the same time, again and again.

use anyhow::{Result, bail};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use wallaby::{Address, NodeId};
use wallaby_bench::random::Random;

use super::ground::Ground;
use super::{addresses, host, identity, memory, work};
use crate::control::{Announcement, Health, Hostility, Instruction, announce};
use crate::process::{self, Instructions};

type Volley = Pin<Box<dyn Future<Output = Result<u64>> + Send>>;

/// Something that a hostile client does.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// For people: what it tries.
    pub(crate) about: &'static str,
    /// Volleys at the same time, and the pause after each.
    lanes: usize,
    pause: Duration,
    volley: fn(Arc<Ground>, Random) -> Volley,
}

macro_rules! attacks {
    ($($name:literal, $about:literal, $lanes:literal, $pause:literal ms, $volley:path;)+) => {
        pub(crate) const ATTACKS: &[Attack] = &[$(Attack {
            name: $name,
            about: $about,
            lanes: $lanes,
            pause: Duration::from_millis($pause),
            volley: |ground, random| Box::pin($volley(ground, random)),
        }),+];
    };
}

attacks! {
    "impersonation", "a hello with an honest node's id, then word that its calls are over", 1, 250 ms, identity::impersonate;
    "delegated-oldest", "the same word in a request that is said to be handed on", 1, 250 ms, identity::end_calls_of_others;
    "eavesdropping", "connects and waits for what is for others", 2, 500 ms, identity::eavesdrop;
    "garbage", "bytes that are no protocol, frames that end in the middle", 1, 30 ms, identity::garbage;
    "requests-overdrawn", "requests beyond the window, whose handlers hang", 1, 2000 ms, memory::overdraw;
    "small-requests", "requests of a few bytes between long answers that nobody waits for", 1, 2000 ms, memory::sparse;
    "unfinished", "120 large messages that grow by 4 bytes a second", 30, 500 ms, memory::trickle;
    "deaf", "pings without end by who never reads", 1, 2000 ms, memory::deaf;
    "half-handshakes", "half a hello, or a session that stays silent", 4, 500 ms, memory::half_handshakes;
    "initiators", "an initiator of its own for each request", 1, 100 ms, work::initiators;
    "hanging", "6,000 calls of ten minutes", 1, 4000 ms, work::hang;
    "crowding", "4,000 calls of 100 ms of one client", 1, 3000 ms, work::crowd;
    "crumbs", "answers for which nothing is granted, and then credit of no bytes", 1, 1000 ms, work::crumbs;
    "ping-settings", "ping periods, timeouts and deadlines of 0, or of ages", 1, 200 ms, work::ping_settings;
    "bomb", "a tree that grows by four at each hop, with a deadline of 2 s", 1, 8000 ms, work::bomb;
    "silent-bomb", "a tree that grows by three, of who states nothing", 1, 8000 ms, work::silent_bomb;
    "reply-addresses", "initiators that are said to be at somebody's address", 1, 200 ms, addresses::reflect;
    "call-back", "hellos that name somebody's address", 1, 500 ms, addresses::call_back;
}

/// Attacks of clients, then what the hostile server does.
pub(crate) fn names() -> Vec<&'static str> {
    let clients = ATTACKS.iter().map(|attack| attack.name);
    clients
        .chain(host::manners().map(|(name, _)| name))
        .collect()
}

/// Where a hostile process's counters say that a volley was not let finish.
const CUT_SHORT: &str = ", cut short";

/// Attacks until the director has gone.
pub(crate) async fn attend(hostility: &Hostility) -> Result<()> {
    let servers = process::addresses(&hostility.targets)?;
    let rings = process::addresses(&hostility.rings)?;
    let nodes = hostility.nodes.iter().filter_map(|node| NodeId::new(*node));
    let (victims, udp, tcp) = addresses::victims(&hostility.ip).await?;
    let ground = Arc::new(Ground::new(servers, rings, nodes.collect(), victims));
    tokio::spawn(addresses::count_datagrams(Arc::clone(&ground), udp));
    tokio::spawn(addresses::count_dials(Arc::clone(&ground), tcp));
    let mut random = Random::new(hostility.seed);
    match &hostility.listen {
        Some(own) => {
            let own: Address = own.parse()?;
            let names = hostility.attacks.clone();
            let ground = Arc::clone(&ground);
            tokio::spawn(async move {
                if let Err(error) = host::serve(ground, own, &names, random).await {
                    eprintln!("error: {error:#}");
                    std::process::exit(2);
                }
            });
        }
        None => {
            let chosen = |attack: &&Attack| hostility.attacks.iter().any(|n| n == attack.name);
            for attack in ATTACKS.iter().filter(chosen) {
                for _ in 0..attack.lanes {
                    let random = Random::new(random.between(0, u64::MAX - 1));
                    tokio::spawn(repeat(attack, Arc::clone(&ground), hostility.rate, random));
                }
            }
        }
    }
    let mut instructions = Instructions::new();
    announce(&Announcement::Ready)?;
    while let Some(instruction) = instructions.next().await? {
        match instruction {
            Instruction::Report => announce(&Announcement::Health(Health {
                counted: ground.counted(),
                ..Health::default()
            }))?,
            other => bail!("a hostile process can't {other:?}"),
        }
    }
    Ok(())
}

async fn repeat(attack: &'static Attack, ground: Arc<Ground>, rate: f64, mut random: Random) {
    let pause = attack.pause.div_f64(rate.max(0.001));
    loop {
        // Nobody begins at the same time as the others.
        tokio::time::sleep(pause.mul_f64(random.between(500, 1500) as f64 / 1000.0)).await;
        let own = Random::new(random.between(0, u64::MAX - 1));
        match (attack.volley)(Arc::clone(&ground), own).await {
            Ok(times) => ground.count(attack.name, times),
            Err(_) => ground.count(&format!("{}{CUT_SHORT}", attack.name), 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn the_security_page_names_each_attack() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/security.md");
        let text = std::fs::read_to_string(page).unwrap();
        for name in names() {
            assert!(
                text.contains(&format!("`{name}`")),
                "docs/security.md lacks {name}"
            );
        }
    }
}
