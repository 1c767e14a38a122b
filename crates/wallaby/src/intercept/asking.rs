//! How interceptors are asked about a request, one after the other.

use std::any::Any;
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use wallaby_proto::endpoint::Author;

use super::around::{Layer, caught, until_stopped};
use super::{Admission, Incoming, Intent};
use crate::handling::Handling;
use crate::request::RequestInfo;

/// An interceptor that wants to wait.
type Wait = Pin<Box<dyn Future<Output = Admission> + Send>>;

/// A request about which interceptors are asked.
pub(crate) struct Asking {
    handling: Arc<Handling>,
    /// Who was asked last.
    author: Author,
    /// What is to be around it, the outermost first.
    layers: Vec<Layer>,
}

impl Asking {
    /// Asks them. If one wants to wait, that is a task, which an abort and the deadline find.
    pub(crate) fn begin(handling: Arc<Handling>) {
        let mut asking = Self {
            handling,
            author: Author::Handler,
            layers: Vec::new(),
        };
        let Some(wait) = asking.ask() else {
            return;
        };
        let handling = Arc::clone(&asking.handling);
        handling.wait_for_admission();
        let runtime = handling.endpoint.runtime.clone();
        runtime.spawn(async move { until_stopped(&handling, asking.wait(wait)).await });
    }

    async fn wait(mut self, mut wait: Wait) {
        loop {
            let decided = caught(wait).await;
            let decided = decided.unwrap_or_else(|panic| self.refuse_for(panic));
            let next = match self.follow(decided) {
                ControlFlow::Continue(()) => self.ask(),
                ControlFlow::Break(next) => next,
            };
            match next {
                Some(next) => wait = next,
                None => return,
            }
        }
    }

    /// Asks as long as nobody wants to wait, or it is decided.
    fn ask(&mut self) -> Option<Wait> {
        while let Some((place, interceptor, is_open)) = self.handling.next_interceptor() {
            self.author = Author::Interceptor(place);
            let incoming = Incoming::new(RequestInfo::new(&self.handling, self.author));
            let ask = AssertUnwindSafe(|| match is_open {
                true if !interceptor.concerns(self.handling.method()) => Admission::Run,
                _ => interceptor.admit(&incoming),
            });
            let decided = self.handling.span().in_scope(|| catch_unwind(ask));
            let decided = decided.unwrap_or_else(|panic| self.refuse_for(panic));
            if let ControlFlow::Break(next) = self.follow(decided) {
                return next;
            }
        }
        self.go_on(None);
        None
    }

    /// Its turn comes.
    fn go_on(&mut self, replay: Option<Vec<Intent>>) {
        self.handling.put_around(std::mem::take(&mut self.layers));
        self.handling.enqueue(replay);
    }

    /// Whether the next one is to be asked; if not, whether this one wants to wait.
    fn follow(&mut self, decided: Admission) -> ControlFlow<Option<Wait>> {
        match decided {
            Admission::Run => return ControlFlow::Continue(()),
            Admission::Wait(wait) => return ControlFlow::Break(Some(wait)),
            Admission::Around(exchange) => {
                let author = self.author;
                self.layers.push(Layer { author, exchange });
                return ControlFlow::Continue(());
            }
            Admission::Replay(intents) => self.go_on(Some(intents)),
            Admission::Refuse(status) => {
                let layers = std::mem::take(&mut self.layers);
                self.handling.refuse(layers, status);
            }
        }
        ControlFlow::Break(None)
    }

    fn refuse_for(&self, panic: Box<dyn Any + Send>) -> Admission {
        Admission::Refuse(self.handling.interceptor_panicked(panic))
    }
}
