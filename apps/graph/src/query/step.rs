//! Queries that branch. What they have to find is cut into steps, each at one vertex. A server takes all steps that it can
//! take by itself, and asks each other server once for all the rest that is there: so however many rows a query has, nobody
//! sends more requests for it than there are other servers.
//!
//! Both forms take the same steps at the same servers. In the multi-hop form a server answers its rows and passes on what is
//! left (`Server::take`); in the plain form both go back to the client, which asks on (`by_calls`), for each server as
//! soon as it knows that there is something to ask.

use crate::client::Client;
use crate::fact::Vertex;
use crate::server::Server;
use crate::shard::Shard;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;
use tokio::task::JoinSet;
use wallaby::{CallError, Many, Request, Status, Target};

/// About how many bytes of rows or steps go into one message: over UDP it may have 64 KiB.
const MOST_BYTES: usize = 32 << 10;

/// A part of a query that one server can do.
pub trait Step: Sized + Send + Sync + 'static {
    /// What comes of it at last.
    type Row: Row;

    /// Where it is taken.
    fn at(&self) -> Vertex;

    /// About how many bytes it takes.
    fn size(&self) -> usize;

    /// Takes it: rows that are found, and steps that are to be taken after it.
    ///
    /// # Errors
    ///
    /// If the graph is not as it can be: then the query has no result.
    fn take(
        self,
        shard: &Shard,
        rows: &mut Vec<Self::Row>,
        next: &mut Vec<Self>,
    ) -> Result<(), Status>;
}

/// What a step finds.
pub trait Row: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// About how many bytes it takes.
    fn size(&self) -> usize;
}

/// What one server has found, in messages of bounded size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found<S, R> {
    /// Rows.
    pub rows: Vec<Vec<R>>,
    /// What other servers are to be asked: the server's number, from 0, and the steps.
    pub next: Vec<(u32, Vec<S>)>,
}

impl Server {
    /// Takes steps for a plain call, which has one answer: what no longer goes into it is asked for once more.
    pub(super) fn find<S: Step>(&self, steps: Vec<S>) -> Result<Found<S, S::Row>, Status> {
        self.find_at_most(MOST_BYTES, steps)
    }

    /// Takes steps, and those after them as long as they are here, until about so much is found. All see the graph at one
    /// moment.
    fn find_at_most<S: Step>(
        &self,
        most: usize,
        steps: Vec<S>,
    ) -> Result<Found<S, S::Row>, Status> {
        let own = self.seat().index();
        let (mut here, mut rows, mut next, mut bytes) = (steps, Vec::new(), Vec::new(), 0);
        let mut elsewhere: BTreeMap<usize, Vec<S>> = BTreeMap::new();
        self.read(|shard| {
            while bytes < most {
                let Some(step) = here.pop() else { break };
                let known = rows.len();
                step.take(shard, &mut rows, &mut next)?;
                bytes += rows[known..].iter().map(Row::size).sum::<usize>();
                for step in next.drain(..) {
                    match self.placement().index(step.at()) {
                        server if server == own => here.push(step),
                        server => {
                            bytes += step.size();
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
            let messages = in_messages(steps, Step::size);
            messages
                .into_iter()
                .map(move |steps| (server as u32, steps)) // of 256 at most
        });
        Ok(Found {
            rows: in_messages(rows, Row::size),
            next: next.collect(),
        })
    }

    /// Takes steps of a multi-hop call: answers what is found, and passes the rest on to `target` at other servers.
    pub(super) async fn take<S: Step>(
        &self,
        request: Request<Many<Vec<S::Row>>>,
        steps: Vec<S>,
        target: impl Fn(Vec<S>) -> Target<Many<Vec<S::Row>>>,
    ) -> Result<(), Status> {
        let found = self.find_at_most(usize::MAX, steps)?;
        for rows in found.rows {
            request.reply(rows).await?;
        }
        for (server, steps) in found.next {
            let server = &self.placement().servers()[server as usize];
            request.delegate(server, target(steps)).await?;
        }
        Ok(())
    }
}

/// Takes steps by plain calls, from the first one on.
///
/// # Errors
///
/// If one of them fails.
pub(super) async fn by_calls<S, R, F>(
    client: &Client,
    first: S,
    call: impl Fn(wallaby::Client, Vec<S>) -> F,
) -> Result<Vec<R>, CallError>
where
    S: Step,
    R: Send + 'static,
    Found<S, R>: Send + 'static,
    F: Future<Output = Result<Found<S, R>, CallError>> + Send + 'static,
{
    let (mut rows, mut calls) = (Vec::new(), JoinSet::new());
    calls.spawn(call(client.at(first.at()), vec![first]));
    while let Some(found) = calls.join_next().await {
        // A task that panicked panics here: it is this program's own mistake.
        let found = found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        rows.extend(found.rows.into_iter().flatten());
        for (server, steps) in found.next {
            let servers = client.placement().servers().len();
            // What a server says that there is not is nobody's.
            if (server as usize) < servers {
                calls.spawn(call(client.server(server as usize), steps));
            }
        }
    }
    Ok(rows)
}

/// Parts none of which is much more than a message should be.
fn in_messages<T>(all: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut messages: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in all {
        let more = size(&one);
        match messages.last_mut() {
            Some(message) if bytes + more <= MOST_BYTES => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_as_much_as_they_may() {
        let sizes = |all: &[usize]| in_messages(all.to_vec(), |size| *size);
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&[1, 2, 3]), [[1, 2, 3]]);
        let half = MOST_BYTES / 2;
        assert_eq!(
            sizes(&[half, half, 1, 2 * MOST_BYTES, 1]),
            [vec![half, half], vec![1], vec![2 * MOST_BYTES], vec![1]]
        );
    }
}
