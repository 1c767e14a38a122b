//! The program of `docs/guide/testing.md`.
//! Apart from other tests, as it is a whole program, and needs a feature that changes the network and the time of all endpoints.

use std::time::Duration;
use wallaby::{Address, Client, Endpoint, Retry};

#[wallaby::service(package = "library")]
trait Shelf {
    async fn read(volume: u32) -> String;
}

struct MyShelf;

#[wallaby::serve]
impl Shelf for MyShelf {
    async fn read(&self, volume: u32) -> String {
        tokio::time::sleep(Duration::from_millis(50)).await; // virtual
        format!("volume {volume}")
    }
}

async fn serve() -> turmoil::Result {
    let builder = Endpoint::builder()
        .listen("tcp://0.0.0.0:4000")
        .advertise("tcp://shelf:4000".parse()?);
    let _endpoint = builder.serve(shelf::service(MyShelf)).bind().await?;
    std::future::pending().await // until the host crashes, or the test is over
}

/// Reads a hundred volumes, one after the other; sends how long each took.
async fn read(longest: tokio::sync::mpsc::UnboundedSender<Duration>) -> turmoil::Result {
    let endpoint = Endpoint::client()?;
    let server: Address = "tcp://shelf:4000".parse()?; // the host's name
    let retry = Retry::idempotent(20).backoff(Duration::from_secs(1), Duration::from_secs(10));
    let shelf = shelf::within(
        Client::new(&endpoint, server)
            .retry(retry)
            .deadline(Duration::from_secs(60)),
    );
    for volume in 0..100 {
        let begun = tokio::time::Instant::now();
        assert_eq!(shelf.read(volume).await?, format!("volume {volume}"));
        longest.send(begun.elapsed())?;
    }
    Ok(())
}

fn main() -> turmoil::Result {
    for seed in 0..3 {
        wallaby::simulation::seed(seed); // of Wallaby's random numbers
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed) // of the network's
            .simulation_duration(Duration::from_secs(300))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(20))
            .build();
        let (told, mut times) = tokio::sync::mpsc::unbounded_channel();
        sim.host("shelf", serve);
        sim.client("reader", read(told));

        // The link is cut after a second, and mended after 21.
        let mut cut = false;
        while !sim.step()? {
            let should = (1..21).contains(&sim.elapsed().as_secs());
            if should != cut {
                cut = should;
                if cut {
                    sim.partition("shelf", "reader")
                } else {
                    sim.repair("shelf", "reader")
                }
            }
        }
        let mut longest = Duration::ZERO;
        while let Ok(time) = times.try_recv() {
            longest = longest.max(time);
        }
        println!(
            "seed {seed}: all 100 were read, after {:?} at most",
            Duration::from_millis(longest.as_millis() as u64)
        );
        assert!(longest > Duration::from_secs(10), "one of them met the cut");
    }
    Ok(())
}
