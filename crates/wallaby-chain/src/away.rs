//! States that are too large to travel with a request: they follow it, as its body, while its link runs already.

use std::io::Cursor;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::JoinHandle;
use wallaby::intercept::Incoming;
use wallaby::{Body, BodyError, Status};

use crate::chains::ChainLimits;
use crate::code::Hash;
use crate::limit::Limit;
use crate::stack::{Level, Stack};

/// So many bytes at most a stack has in place of a value, and besides if there are any.
const ONE: usize = 16;
const ALL: usize = 48;

/// Which values of a stack are not in it, and what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Away {
    /// Of all of them, one after the other.
    hash: Hash,
    /// In this order.
    places: Vec<Place>,
}

/// The level of a value, its number among those of the state, and how many bytes it has.
type Place = (u32, u32, u32);

impl Away {
    #[cfg(test)]
    pub(crate) fn at(hash: Hash, places: &[(u32, u32, u32)]) -> Self {
        let places = places.to_vec();
        Self { hash, places }
    }

    /// How many bytes they have.
    pub(crate) fn size(&self) -> usize {
        self.places.iter().map(|(.., size)| *size as usize).sum()
    }

    /// Whether each is missing where it is said to be.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn check(&self, levels: &mut [Level]) -> Result<(), &'static str> {
        let is_before = |one: &Place, other: &Place| (one.0, one.1) < (other.0, other.1);
        if !self.places.is_sorted_by(is_before) {
            return Err("values that follow it in no order");
        }
        let mut places = self.places.iter();
        match places.all(|place| find(levels, place).is_some_and(|value| value.is_empty())) {
            true => Ok(()),
            false => Err("a value that follows it has no place"),
        }
    }
}

fn find<'a>(levels: &'a mut [Level], (level, value, _): &Place) -> Option<&'a mut Vec<u8>> {
    let state = levels.get_mut(*level as usize)?.state_mut();
    let value = state.values.value_mut(*value as usize)?;
    Some(&mut value.bytes)
}

impl Stack {
    /// Takes the largest values out of a stack of this size until it has no more than `most` bytes, if that can be reached so; all of
    /// them, one after the other.
    pub(crate) fn put_away(&mut self, size: usize, most: usize) -> Option<Bytes> {
        if size <= most {
            return None;
        }
        let mut values = Vec::new();
        for (level, levels) in (0..).zip(&mut self.levels) {
            let state = (0..).zip(levels.state_mut().values.values());
            values.extend(state.map(|(value, (_, it))| (it.bytes.len(), level, value)));
        }
        values.sort_unstable_by(|one, other| other.cmp(one));
        let mut left = size + ALL;
        let mut places = Vec::new();
        for (bytes, level, value) in values {
            let (true, Ok(short)) = (left > most && bytes > ONE, u32::try_from(bytes)) else {
                break;
            };
            left = left + ONE - bytes;
            places.push((level, value, short));
        }
        if left > most {
            return None;
        }
        places.sort_unstable();
        let mut all = Vec::new();
        for place in &places {
            let value = find(&mut self.levels, place).map(std::mem::take);
            all.extend(value.unwrap_or_default());
        }
        let hash = Hash::of(&all);
        self.tail.away = Some(Away { hash, places });
        Some(all.into())
    }

    /// Puts them back.
    ///
    /// # Errors
    ///
    /// `DataLoss` if these are others.
    pub(crate) fn put_back(&mut self, all: &Bytes) -> Result<(), Status> {
        let Some(away) = self.tail.away.take() else {
            return Ok(());
        };
        if all.len() != away.size() || Hash::of(all) != away.hash {
            let message = "what has followed a request of a chain is not its state";
            return Err(Status::data_loss(message));
        }
        let mut all = &all[..];
        for place in &away.places {
            let (value, rest) = all.split_at(place.2 as usize);
            if let Some(found) = find(&mut self.levels, place) {
                value.clone_into(found);
            }
            all = rest;
        }
        Ok(())
    }
}

/// How many bytes of states are on their way, to this server and from it.
#[derive(Debug, Default)]
pub(crate) struct States(AtomicUsize);

/// Some of these bytes.
struct Held {
    of: Arc<States>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl States {
    /// # Errors
    ///
    /// If it is more than the limits allow.
    fn hold(self: &Arc<Self>, bytes: usize, limits: &ChainLimits) -> Result<Held, Status> {
        let (most, all) = (limits.state, limits.states);
        if bytes > most {
            return Err(Limit::State.exceeded(format!(
                "a chain with {bytes} bytes of state that follow it: at most {most} are allowed"
            )));
        }
        let held = self.0.fetch_add(bytes, Ordering::Relaxed);
        let of = Arc::clone(self);
        let own = Held { of, bytes };
        if held.saturating_add(bytes) > all {
            return Err(Limit::Load.exceeded(format!(
                "states of chains have {all} bytes on their way here: no more are allowed"
            )));
        }
        Ok(own)
    }

    /// What leaves behind a request.
    ///
    /// # Errors
    ///
    /// If it is more than the limits allow.
    pub(crate) fn leave(
        self: &Arc<Self>,
        bytes: Bytes,
        limits: &ChainLimits,
    ) -> Result<Body, Status> {
        let held = self.hold(bytes.len(), limits)?;
        let bytes = Cursor::new(bytes);
        Ok(Body::from_read(Leaving { bytes, _held: held }))
    }

    /// Reads what comes behind a request, if this is what it says, from now on.
    ///
    /// # Errors
    ///
    /// If it is more than the limits allow, or nothing comes.
    pub(crate) fn come(
        self: &Arc<Self>,
        request: &Incoming,
        stack: &Stack,
        limits: &ChainLimits,
    ) -> Result<Option<Coming>, Status> {
        let Some(away) = &stack.tail.away else {
            return Ok(None);
        };
        let size = away.size();
        let held = self.hold(size, limits)?;
        let Some(body) = request.take_body() else {
            let message = "a chain whose state does not follow it";
            return Err(Status::invalid_argument(message));
        };
        Ok(Some(Coming(tokio::spawn(async move {
            let came = body.collect(size).await;
            (held, came)
        }))))
    }
}

/// What leaves.
struct Leaving {
    bytes: Cursor<Bytes>,
    _held: Held,
}

impl AsyncRead for Leaving {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(cx, buffer)
    }
}

/// What comes. Who does not wait for it any more stops its sender.
pub(crate) struct Coming(JoinHandle<(Held, Result<Bytes, BodyError>)>);

impl Coming {
    /// The stack with all of its states. If they do not come, it is one without levels: nobody is asked what was to be.
    ///
    /// # Errors
    ///
    /// Why they have not come, with that.
    pub(crate) async fn whole(
        mut coming: Option<Self>,
        mut stack: Stack,
    ) -> Result<Stack, (Stack, Status)> {
        let came = match &mut coming {
            // They have gone on with what the link had come to before.
            None if stack.tail.away.take().is_some() => {
                stack.levels.clear();
                let message = "the chain has gone on with its state before";
                return Err((stack, Status::internal(message)));
            }
            None => return Ok(stack),
            Some(coming) => (&mut coming.0).await,
        };
        let back = match came {
            Ok((_held, Ok(all))) => stack.put_back(&all),
            Ok((_, Err(error))) => {
                let message = format!("a chain's state has not come: {error}");
                Err(Status::new(error.code(), message))
            }
            Err(error) => Err(Status::internal(error.to_string())),
        };
        match back {
            Ok(()) => Ok(stack),
            Err(status) => {
                stack.levels.clear();
                Err((stack, status))
            }
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.abort();
    }
}
