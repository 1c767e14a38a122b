//! Queries that branch. What they have to find is cut into steps, each at one vertex. A server follows all steps as far as
//! it can by itself, and asks each other server once for all the rest that is there: so however many rows a query has,
//! nobody sends more requests for it than there are other servers.
//!
//! Both forms take the same steps at the same servers. In the multi-hop form a server replies with what it has found and
//! delegates what is left, as [`is2`](super::is2) shows; in the plain form both go back to the client, which asks on
//! (`by_calls`), for each server as soon as it knows that there is something to ask.

use crate::client::Client;
use crate::model::Vertex;
use crate::server::Server;
use crate::shard::Shard;
use postcard::experimental::serialized_size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;
use tokio::task::JoinSet;
use wallaby::{CallError, Status};

/// About how many bytes of rows or steps go into one message: over UDP it may have 64 KiB.
pub(super) const ONE_MESSAGE: usize = 32 << 10;

/// As far as a server can.
pub(super) const ALL: usize = usize::MAX;

/// A part of a query that one server can do.
pub trait Step: Serialize + Sized {
    /// What comes of it at last.
    type Row: Serialize;

    /// Where it is taken.
    fn at(&self) -> Vertex;

    /// Takes it: rows that are found, and steps that are to be taken after it.
    fn take(
        self,
        shard: &Shard,
        rows: &mut Vec<Self::Row>,
        next: &mut Vec<Self>,
    ) -> Result<(), Status>;
}

/// What one server has found, in messages of bounded size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found<S, R> {
    /// Rows that are complete.
    pub rows: Vec<Vec<R>>,
    /// What other servers are to be asked: the server's number, from 0, and the steps.
    pub next: Vec<(u32, Vec<S>)>,
}

impl Server {
    /// Takes steps, and those after them as long as they are here, until about so many bytes are found: what is left then
    /// is to be asked here once more. All see the graph at one moment.
    pub(super) fn follow<S: Step>(
        &self,
        steps: Vec<S>,
        most: usize,
    ) -> Result<Found<S, S::Row>, Status> {
        let own = self.seat.index();
        let (mut here, mut rows, mut next, mut bytes) = (steps, Vec::new(), Vec::new(), 0);
        let mut elsewhere: BTreeMap<usize, Vec<S>> = BTreeMap::new();
        self.read(|shard| {
            while bytes < most {
                let Some(step) = here.pop() else { break };
                let known = rows.len();
                step.take(shard, &mut rows, &mut next)?;
                bytes += rows[known..].iter().map(size).sum::<usize>();
                for step in next.drain(..) {
                    match self.placement.index(step.at()) {
                        server if server == own => here.push(step),
                        server => {
                            bytes += size(&step);
                            elsewhere.entry(server).or_default().push(step);
                        }
                    }
                }
            }
            Ok::<_, Status>(())
        })?;
        if !here.is_empty() {
            elsewhere.insert(own, here);
        }
        let next = elsewhere.into_iter().flat_map(|(server, steps)| {
            let messages = in_messages(steps).into_iter();
            messages.map(move |steps| (server as u32, steps)) // of 256 at most
        });
        Ok(Found {
            rows: in_messages(rows),
            next: next.collect(),
        })
    }
}

/// Takes steps by plain calls, from the first one on.
pub(super) async fn by_calls<S, R, F>(
    client: &Client,
    first: S,
    find: impl Fn(wallaby::Client, Vec<S>) -> F,
) -> Result<Vec<R>, CallError>
where
    S: Step,
    Found<S, R>: Send + 'static,
    F: Future<Output = Result<Found<S, R>, CallError>> + Send + 'static,
{
    let (mut rows, mut calls) = (Vec::new(), JoinSet::new());
    calls.spawn(find(client.at(first.at()), vec![first]));
    while let Some(found) = calls.join_next().await {
        // A task that panicked panics here: it is this program's own mistake.
        let found = found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        rows.extend(found.rows.into_iter().flatten());
        for (server, steps) in found.next {
            // What a server says that there is not is nobody's.
            if let Some(server) = client.server(server) {
                calls.spawn(find(server, steps));
            }
        }
    }
    Ok(rows)
}

/// Parts none of which is much more than a message should be.
fn in_messages<T: Serialize>(all: Vec<T>) -> Vec<Vec<T>> {
    let mut messages: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in all {
        let more = size(&one);
        match messages.last_mut() {
            Some(message) if bytes + more <= ONE_MESSAGE => {
                message.push(one);
                bytes += more;
            }
            _ => {
                messages.push(vec![one]);
                bytes = more;
            }
        }
    }
    messages
}

/// How many bytes it has in a message. What cannot be encoded fails when it is sent.
fn size<T: Serialize>(one: &T) -> usize {
    serialized_size(one).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_as_much_as_they_may() {
        let lengths = |all: &[usize]| -> Vec<Vec<usize>> {
            let texts = all.iter().map(|length| "x".repeat(*length));
            let messages = in_messages(texts.collect()).into_iter();
            let lengths = |message: Vec<String>| message.iter().map(String::len).collect();
            messages.map(lengths).collect()
        };
        assert!(lengths(&[]).is_empty());
        assert_eq!(lengths(&[1, 2, 3]), [[1, 2, 3]]);
        // With the two bytes that tell how long it is.
        let half = ONE_MESSAGE / 2 - 2;
        let whole = 2 * ONE_MESSAGE;
        assert_eq!(
            lengths(&[half, half, 1, whole, 1]),
            [vec![half, half], vec![1], vec![whole], vec![1]]
        );
    }
}
