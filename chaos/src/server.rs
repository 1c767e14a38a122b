//! A server: a service that counts, by a journal, each time that one of its handlers runs.

use anyhow::Result;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use wallaby::{Address, Code, Endpoint, Many, One, Request, Status};

use crate::control::{Config, Entrance};
use crate::journal::{Event, Journal};
use crate::plan::{Number, Receipt, Spread, Step};
use crate::process;
use crate::{audit, hostile, moment};

/// Does what the step says and hands on what follows.
#[wallaby::service(package = "chaos")]
pub(crate) trait Counter {
    /// A line: whoever is last answers.
    async fn one(step: Step) -> Receipt;
    /// Any tree: everybody answers as often as the step says.
    async fn many(step: Step) -> Many<Receipt>;
    /// A tree of nothing but requests, at all servers in turn.
    async fn spread(spread: Spread) -> Many<Receipt>;
}

struct Server {
    journal: Journal,
    peers: Vec<Address>,
    /// How many of them are honest.
    honest: usize,
    next: AtomicUsize,
    /// Requests of trees that began long after their deadline.
    late: AtomicU64,
}

#[wallaby::serve]
impl Counter for Server {
    async fn one(&self, request: Request<One<Receipt>>, step: Step) -> Result<(), Status> {
        self.write(Event::Begun, step.id);
        pause(micros(step.work_us)).await;
        let id = step.id;
        match &step.then[..] {
            [] => {
                self.write(Event::Answering(0), id);
                request.respond(Receipt::new(&step, 0)).await?;
            }
            [next, ..] => {
                let server = self.peer(next)?;
                request.forward(server, counter::one(next.clone())).await?;
            }
        }
        self.write(Event::Ended, id);
        Ok(())
    }

    async fn many(&self, request: Request<Many<Receipt>>, mut step: Step) -> Result<(), Status> {
        self.write(Event::Begun, step.id);
        pause(micros(step.work_us)).await;
        for index in 0..step.answers {
            self.write(Event::Answering(index), step.id);
            request.reply(Receipt::new(&step, index)).await?;
        }
        for next in std::mem::take(&mut step.then) {
            let server = self.peer(&next)?;
            request.delegate(server, counter::many(next)).await?;
        }
        let hold = Duration::from_millis(step.hold_ms.into());
        pause(hold).await;
        self.write(Event::Ended, step.id);
        Ok(())
    }

    async fn spread(&self, request: Request<Many<Receipt>>, spread: Spread) -> Result<(), Status> {
        if spread.until > 0 && moment::now() > spread.until + audit::MARGIN.as_nanos() as u64 {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let Some(deep) = spread.deep.checked_sub(1) else {
            return Ok(());
        };
        for _ in 0..spread.wide {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.honest;
            let further = Spread {
                deep,
                hold_ms: 0,
                ..spread
            };
            let further = counter::spread(further);
            request.delegate(&self.peers[next], further).await?;
        }
        let hold = Duration::from_millis(spread.hold_ms.into());
        pause(hold).await;
        Ok(())
    }
}

impl Server {
    fn write(&self, event: Event, id: u64) {
        if Number::unpack(id).is_recorded() {
            self.journal.write(event, id);
        }
    }

    fn peer(&self, step: &Step) -> Result<&Address, Status> {
        let peer = self.peers.get(usize::from(step.server));
        peer.ok_or_else(|| Status::new(Code::NotFound, format!("no server {}", step.server)))
    }
}

fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros.into())
}

/// Works for so long.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Serves until the director has gone.
pub(crate) async fn serve(config: &Config, entrance: &Entrance, journal: &Path) -> Result<()> {
    let server = Arc::new(Server {
        journal: Journal::open(journal)?,
        peers: process::addresses(config.servers.iter().chain(&config.hostile))?,
        honest: config.servers.len(),
        next: AtomicUsize::new(0),
        late: AtomicU64::new(0),
    });
    let endpoint: Endpoint = process::builder(config, Some(entrance))?
        .serve(counter::service(Arc::clone(&server)))
        .bind()
        .await?;
    let late = || {
        (
            hostile::OVERDUE.to_owned(),
            server.late.load(Ordering::Relaxed),
        )
    };
    process::attend_reports(&endpoint, late).await
}
