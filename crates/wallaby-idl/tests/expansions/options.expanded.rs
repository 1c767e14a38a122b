//! Package, codec, a private trait, and what happens to attributes.
#[cfg(feature = "blobs")]
trait BlobStore: blob_store::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[cfg(unix)]
    #[deprecated]
    #[must_use]
    fn put(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<wallaby::One<Key>, self::codec::Plain>,
        data: super::Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`BlobStore`].
#[cfg(feature = "blobs")]
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
mod blob_store {
    use super::*;
    /// The name of the service, with its package.
    pub(super) const SERVICE: &::core::primitive::str = "demo.blobs.BlobStore";
    #[cfg(unix)]
    /// The method `put` of the service.
    pub(super) static PUT: ::wallaby::Method<
        (super::super::Bytes,),
        wallaby::One<Key>,
        super::codec::Plain,
    > = ::wallaby::Method::new("demo.blobs.BlobStore/put");
    /// Calls the methods of [`BlobStore`] at one server.
    ///
    /// A method may have the name of one of the options below and takes its place then: set such an option
    /// on a [`wallaby::Client`](::wallaby::Client) and pass that to [`within`].
    #[derive(::core::clone::Clone, ::core::fmt::Debug)]
    #[must_use = "a client does nothing until one of its methods is called"]
    pub(super) struct Client {
        client: ::wallaby::Client,
    }
    /// A client of the service at the address `server`, whose calls `endpoint` makes.
    pub(super) fn at(
        endpoint: &::wallaby::Endpoint,
        server: impl ::core::convert::Into<::wallaby::Address>,
    ) -> Client {
        within(::wallaby::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub(super) fn within(client: ::wallaby::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Calls [`BlobStore::put`].
        #[cfg(unix)]
        #[deprecated]
        pub(super) fn put(
            &self,
            data: super::super::Bytes,
        ) -> ::wallaby::Call<wallaby::One<Key>, super::codec::Plain> {
            self.client.call(&PUT, (data,))
        }
        /// Ends calls that are not complete after this time.
        pub(super) fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// Has every hop of a call report where and when it ran.
        pub(super) fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// Sends this entry of metadata with every call, to all of its hops.
        pub(super) fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// Ends a call at its first status.
        pub(super) fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// Goes on without what is lost: a status says so in place of that branch's answers.
        pub(super) fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// Delivers the answers of each server in the order in which it sent them.
        pub(super) fn in_order(self) -> Self {
            within(self.client.in_order())
        }
    }
    /// The delegation target [`BlobStore::put`].
    #[cfg(unix)]
    #[deprecated]
    pub(super) fn put(
        data: super::super::Bytes,
    ) -> ::wallaby::Target<wallaby::One<Key>, super::codec::Plain> {
        PUT.target((data,))
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub(super) fn service<Server: super::BlobStore>(
        server: Server,
    ) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        #[cfg(unix)]
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &PUT,
                    move |request, (data,)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::BlobStore::put(&server, request, data).await
                        }
                    },
                )
        };
        service
    }
    impl<Server: super::BlobStore> super::BlobStore for ::std::sync::Arc<Server> {
        #[cfg(unix)]
        fn put(
            self: &::std::sync::Arc<Self>,
            request: Self::put,
            data: super::super::Bytes,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::BlobStore>::put(self, request, data)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub(super) trait Requests {
        #[cfg(unix)]
        /// The request of the method `put`.
        type put;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        #[cfg(unix)]
        type put = ::wallaby::Request<wallaby::One<Key>, super::codec::Plain>;
    }
}
/// Seen in a part of the crate.
#[deprecated]
pub(super) trait Near: near::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {}
/// Client, delegation targets and registration of the service [`Near`].
///
/// Seen in a part of the crate.
#[deprecated]
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
pub(super) mod near {
    use super::*;
    /// The name of the service, with its package.
    pub(in super::super) const SERVICE: &::core::primitive::str = "demo.Near";
    /// Calls the methods of [`Near`] at one server.
    ///
    /// A method may have the name of one of the options below and takes its place then: set such an option
    /// on a [`wallaby::Client`](::wallaby::Client) and pass that to [`within`].
    #[derive(::core::clone::Clone, ::core::fmt::Debug)]
    #[must_use = "a client does nothing until one of its methods is called"]
    pub(in super::super) struct Client {
        client: ::wallaby::Client,
    }
    /// A client of the service at the address `server`, whose calls `endpoint` makes.
    pub(in super::super) fn at(
        endpoint: &::wallaby::Endpoint,
        server: impl ::core::convert::Into<::wallaby::Address>,
    ) -> Client {
        within(::wallaby::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub(in super::super) fn within(client: ::wallaby::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Ends calls that are not complete after this time.
        pub(in super::super) fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// Has every hop of a call report where and when it ran.
        pub(in super::super) fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// Sends this entry of metadata with every call, to all of its hops.
        pub(in super::super) fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// Ends a call at its first status.
        pub(in super::super) fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// Goes on without what is lost: a status says so in place of that branch's answers.
        pub(in super::super) fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// Delivers the answers of each server in the order in which it sent them.
        pub(in super::super) fn in_order(self) -> Self {
            within(self.client.in_order())
        }
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub(in super::super) fn service<Server: super::Near>(
        server: Server,
    ) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        service
    }
    impl<Server: super::Near> super::Near for ::std::sync::Arc<Server> {}
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub(in super::super) trait Requests {}
    impl<Server: ?::core::marker::Sized> Requests for Server {}
}
