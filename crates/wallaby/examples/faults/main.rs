//! What a caller reads when something breaks, and after how long: real processes that are killed, stopped and closed, with
//! default settings.
//!
//! ```text
//! cargo run -p wallaby --example faults
//! ```
//!
//! The program starts an index and three shelves as processes of their own, for each fault anew. The index delegates to all
//! shelves, and it is the middle one that something happens to. What is printed is the table of `docs/guide/failures.md`.

mod processes;
mod services;

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use processes::{Library, Process};
use services::{How, index, other, shelf};
use wallaby::{Answers, Call, CallError, Client, Endpoint, Retry, StillRunning};

/// Less than a ping period.
const QUICK: Duration = Duration::from_millis(300);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Who calls, from where.
struct Reader {
    endpoint: Endpoint,
}

impl Reader {
    fn index(&self, library: &Library) -> index::Client {
        index::at(&self.endpoint, &library.index.address)
    }

    /// Calls of whose middle branch the index says how it ends.
    fn look_up(&self, library: &Library, how: How) -> Call<wallaby::Many<String>> {
        self.index(library).lookup(how, None)
    }

    fn shelf(&self, shelf: &Process) -> Client {
        Client::new(&self.endpoint, &shelf.address)
    }

    /// What nobody has to be harmed for.
    async fn refusals(&self) -> Result<(), Failed> {
        let nobody = processes::free_address()?;
        let call = shelf::at(&self.endpoint, &nobody).read(1);
        tell("nobody listens at the address", call).await;

        let silent = TcpListener::bind("127.0.0.1:0")?;
        let address = format!("tcp://{}", silent.local_addr()?);
        let call = shelf::at(&self.endpoint, address.parse::<wallaby::Address>()?).read(1);
        tell("somebody listens there and says nothing", call).await;

        let shelf = Process::start(&["shelf"])?;
        let call = shelf::within(self.shelf(&shelf)).read(0);
        tell("the handler returns a status", call).await;
        let call = shelf::within(self.shelf(&shelf)).find(How::Panic);
        tell("the handler panics", call).await;
        let call = shelf::within(self.shelf(&shelf)).forget();
        tell("the handler ends without its one answer", call).await;
        let call = other::shelf::within(self.shelf(&shelf)).read("1".into());
        tell("the types of the method are others there", call).await;
        let call = other::shelf::within(self.shelf(&shelf)).borrow(1);
        tell("the server has no such method", call).await;
        let call = shelf::within(self.shelf(&shelf)).add(vec![0; 17 << 20]);
        tell("the arguments have 17 MiB", call).await;

        let narrow = Process::start(&["shelf", "--narrow"])?;
        let first = shelf::within(self.shelf(&narrow)).find(How::Hang);
        let first = answers(first, 2).await?;
        let call = shelf::within(self.shelf(&narrow)).read(1);
        tell("all places for handlers and in the queue are taken", call).await;
        drop(first);
        Ok(())
    }

    /// What slow servers do to a call.
    async fn deadlines(&self) -> Result<(), Failed> {
        let library = Library::start()?;
        let index = self.index(&library);
        let call = index.clone().deadline(Duration::from_secs(3));
        let call = call.lookup(How::Hang, None);
        tell("one shelf hangs; the call has 3 s", call).await;
        let call = shelf::within(self.shelf(&library.shelves[0]).deadline(QUICK)).count();
        tell("a slow handler; the call has 300 ms", call).await;
        let call = index.lookup(How::Hang, Some(500));
        tell("one shelf hangs; its delegation has 500 ms", call).await;
        let call = index.clone().fail_fast().lookup(How::Refuse, None);
        tell("one shelf returns a status; the call fails fast", call).await;

        let call = shelf::within(self.shelf(&library.shelves[1])).sort();
        let call = answers(call, 1).await?;
        let begun = Instant::now();
        let stopped: Result<(), StillRunning> = call.stop_within(Duration::from_secs(1)).await;
        println!("the call is given up (`stop_within` 1 s); a blocking handler goes on");
        if let Err(running) = stopped {
            say(begun, &running);
        }
        Ok(())
    }

    /// What becomes of a call when a process ends or stops.
    async fn losses(&self) -> Result<(), Failed> {
        let mut library = Library::start()?;
        library.shelves[1].kill()?;
        let call = self.look_up(&library, How::Work);
        tell("one shelf is not there", call).await;

        for (fault, tolerant) in [
            ("one shelf is killed", false),
            ("the same; the call is tolerant", true),
        ] {
            let mut library = Library::start()?;
            let mut index = self.index(&library);
            if tolerant {
                index = index.tolerant();
            }
            let call = at_work(index.lookup(How::Work, None)).await?;
            library.shelves[1].kill()?;
            tell(fault, call).await;
        }

        let mut library = Library::start()?;
        let call = self.look_up(&library, How::Mute);
        tokio::time::sleep(Duration::from_millis(200)).await;
        library.shelves[1].kill()?;
        tell(
            "the same after 200 ms, before that shelf has answered",
            call,
        )
        .await;

        let mut library = Library::start()?;
        let call = at_work(self.look_up(&library, How::Work)).await?;
        library.shelves[1].restart()?;
        tell("one shelf is killed and started again", call).await;

        let mut library = Library::start()?;
        let call = at_work(self.look_up(&library, How::Work)).await?;
        library.index.kill()?;
        tell("the index is killed after it has delegated", call).await;

        let mut library = Library::start()?;
        let endpoint = Endpoint::client()?;
        let reader = Self { endpoint };
        let call = answers(reader.look_up(&library, How::Work), 6).await?;
        library.index.kill()?;
        tell("the same at once; the client does not listen", call).await;

        let mut library = Library::start()?;
        let call = at_work(self.look_up(&library, How::Work)).await?;
        library.shelves[1].say("close")?;
        tell("one shelf is closed (`Endpoint::close`)", call).await;

        let mut library = Library::start()?;
        let call = at_work(self.look_up(&library, How::Work)).await?;
        library.shelves[1].say("drain")?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let late = shelf::within(self.shelf(&library.shelves[1])).read(1);
        tell("a new call to a shelf that is drained", late).await;
        tell("the call that it was working at", call).await;

        let library = Library::start()?;
        let call = at_work(self.look_up(&library, How::Work)).await?;
        library.shelves[1].freeze()?;
        tell("one shelf's process is stopped (SIGSTOP)", call).await;
        let client = self.shelf(&library.shelves[1]);
        let call = shelf::within(client.deadline(Duration::from_secs(1))).read(1);
        tell("a new call to it, which has 1 s", call).await;
        Ok(())
    }

    /// What attempts do about it.
    async fn attempts(&self) -> Result<(), Failed> {
        let library = Library::start()?;
        let mut dying = Process::start(&["shelf"])?;
        let client = self.shelf(&dying).alternates([&library.shelves[0].address]);
        let client = client.retry(Retry::idempotent(3));
        let call = shelf::within(client).count();
        tokio::time::sleep(Duration::from_millis(200)).await;
        dying.kill()?;
        tell("the server is killed; `Retry`, and another server", call).await;

        let client = self.shelf(&dying).retry(Retry::idempotent(3));
        let call = shelf::within(client).read(1);
        tell("the same; there is no other server", call).await;
        Ok(())
    }
}

/// The call when so many answers have come.
async fn answers<A: Answers<Item = String>>(
    mut call: Call<A>,
    count: usize,
) -> Result<Call<A>, Failed> {
    for _ in 0..count {
        call.next().await.ok_or("the call is over")??;
    }
    Ok(call)
}

/// The call a second after all its branches have begun: its servers have been asked about it by then.
async fn at_work(call: Call<wallaby::Many<String>>) -> Result<Call<wallaby::Many<String>>, Failed> {
    let call = answers(call, 6).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(call)
}

/// Prints what a caller reads from now on but for answers, and how the call ends.
async fn tell<A: Answers<Item = String>>(fault: &str, mut call: Call<A>) {
    println!("{fault}");
    let begun = Instant::now();
    let mut answers = 0;
    while let Some(next) = call.next().await {
        match next {
            Ok(_) => answers += 1,
            Err(error) => say(begun, &error as &CallError),
        }
    }
    let ended = match call.outcome() {
        Some(wallaby::Outcome::Failed(_)) => "has failed".to_owned(),
        Some(outcome) => format!("is complete: {outcome:?}"),
        None => "goes on".to_owned(),
    };
    say(begun, &format!("[{answers} answers; the call {ended}]"));
}

fn say(begun: Instant, what: &impl std::fmt::Display) {
    println!("  {:5} ms  {what}", begun.elapsed().as_millis());
}

async fn faults() -> Result<(), Failed> {
    let endpoint = Endpoint::bind("tcp://127.0.0.1:0").await?;
    let reader = Reader { endpoint };
    reader.refusals().await?;
    reader.deadlines().await?;
    reader.losses().await?;
    reader.attempts().await
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = runtime.map_err(Failed::from).and_then(|runtime| {
        let done = match arguments.split_first() {
            Some((role, rest)) => runtime.block_on(processes::serve(role, rest)),
            None => runtime.block_on(faults()),
        };
        // Handlers that block are not waited for.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
