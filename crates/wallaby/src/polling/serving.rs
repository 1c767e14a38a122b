//! What an endpoint serves.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::Status;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{RequestKey, Serving};

use super::datagrams::Datagrams;
use super::request::{RawRequest, Request};
use super::{Endpoint, Handler};
use crate::codec::Codec;
use crate::error::ServeError;
use crate::method::{self, Method, RequestBody};
use crate::reflection::Description;
use crate::service::undecodable;

impl<D: Datagrams> Endpoint<D> {
    /// Serves a method. The handler runs in [`turn`](Self::turn), and no other does meanwhile: what takes long is put aside
    /// ([`Request::hold`]) and answered later. A status that it returns, or a panic, ends the request.
    ///
    /// # Errors
    ///
    /// If a method of this name is served already, or the name is reserved.
    pub fn serve<Args, A, C>(
        &mut self,
        method: &Method<Args, A, C>,
        handler: impl FnMut(Request<'_, A, C>, Args) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError>
    where
        A: method::Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        self.serve_as(method, false, handler)
    }

    /// The same; the method's name may be one of Wallaby's own.
    pub(super) fn serve_as<Args, A, C>(
        &mut self,
        method: &Method<Args, A, C>,
        reserved: bool,
        mut handler: impl FnMut(Request<'_, A, C>, Args) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError>
    where
        A: method::Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        let handler =
            move |request: RawRequest<'_>, payload| match <C as Codec<Args>>::decode(payload) {
                Ok(arguments) => handler(Request::new(request), arguments),
                Err(error) => Err(undecodable(&error)),
            };
        let how = Serving {
            reserved,
            ..self.typed::<A>()
        };
        let method = (method.definition(), Description::of::<Args, A, C, ()>());
        self.add_handler(method, how, Box::new(handler))
    }

    /// Serves a method behind whose requests something follows, bytes ([`Body`](crate::Body)) or items ([`crate::Streaming`]), and
    /// gives that to its handler: which reads by `try_next` what has come, and keeps the rest for later turns.
    /// [`Event::Body`](super::Event::Body) tells when there is more. Whoever drops it stops its sender.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub fn serve_streaming<Args, A, C, B>(
        &mut self,
        method: &Method<Args, A, C, B>,
        mut handler: impl FnMut(Request<'_, A, C>, Args, B) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError>
    where
        A: method::Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
    {
        let handler = move |mut request: RawRequest<'_>, payload| {
            let arguments = <C as Codec<Args>>::decode(payload);
            let arguments = arguments.map_err(|error| undecodable(&error))?;
            let body = B::receive(&mut request)?;
            handler(Request::new(request), arguments, body)
        };
        let (how, told) = (self.typed::<A>(), Description::of::<Args, A, C, B>());
        self.add_handler((method.definition(), told), how, Box::new(handler))
    }

    /// Serves a method with payloads as bytes.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub fn serve_raw(
        &mut self,
        method: Arc<MethodDefinition>,
        handler: impl FnMut(RawRequest<'_>, Bytes) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError> {
        let method = (&method, Description::default());
        self.add_handler(method, Serving::default(), Box::new(handler))
    }

    /// Serves all methods that are not served by their names, for gateways and proxies: see
    /// [`Service::catch_all`](crate::Service::catch_all).
    ///
    /// # Errors
    ///
    /// If the rest is served already.
    pub fn serve_rest(
        &mut self,
        handler: impl FnMut(RawRequest<'_>, Bytes) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError> {
        let how = Serving {
            rest: true,
            ..Serving::default()
        };
        let rest = (MethodDefinition::rest(), Description::default());
        self.add_handler(rest, how, Box::new(handler))
    }

    fn add_handler(
        &mut self,
        (method, told): (&Arc<MethodDefinition>, Description),
        how: Serving,
        handler: Handler,
    ) -> Result<(), ServeError> {
        self.core.serve(Arc::clone(method), how)?;
        self.handlers.push(handler);
        let served = (Arc::clone(method), told);
        self.own.borrow_mut().served.push(served);
        self.tell_health();
        Ok(())
    }

    /// How a method with these answers is served.
    fn typed<A: method::Answers>(&self) -> Serving {
        Serving {
            one: A::ONE,
            tells_types: self.reflects && !self.core.config().require_seals,
            ..Serving::default()
        }
    }

    /// A request that was put aside, to answer it. It ends when it is dropped, unless it is put aside again. `None` if it has
    /// ended: it was aborted or had no time left.
    pub fn request(&mut self, key: RequestKey) -> Option<RawRequest<'_>> {
        self.look_at_clock();
        let resumed = self.core.resume(key);
        resumed.then(|| RawRequest::new(&mut self.core, &mut self.calling, key, false))
    }
}
