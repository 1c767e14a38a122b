//! Streams that follow requests: of items, of bytes, with a codec, and of a type that the module hides.
pub trait Store: store::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
    /// Loads rows.
    fn load(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<u64>>,
        table: String,
        rows: Streaming<Row>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn copy(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<Many<Client>>,
        rows: wallaby::Streaming<Client>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn put(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<()>>,
        name: String,
        content: Body,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`Store`].
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
pub mod store {
    use super::*;
    /// The name of the service, with its package.
    pub const SERVICE: &::core::primitive::str = "demo.Store";
    /// The method `load` of the service.
    pub static LOAD: ::wallaby::Method<
        (String,),
        ::wallaby::One<u64>,
        ::wallaby::codec::Postcard,
        Streaming<Row>,
    > = ::wallaby::Method::new("demo.Store/load");
    /// The method `copy` of the service.
    pub static COPY: ::wallaby::Method<
        (),
        Many<super::Client>,
        ::wallaby::codec::Postcard,
        wallaby::Streaming<super::Client>,
    > = ::wallaby::Method::new("demo.Store/copy");
    /// The method `put` of the service.
    pub static PUT: ::wallaby::Method<
        (String,),
        ::wallaby::One<()>,
        ::wallaby::codec::Postcard,
        Body,
    > = ::wallaby::Method::new("demo.Store/put");
    /// Calls the methods of [`Store`] at one server.
    ///
    /// A method may have the name of one of the options below and takes its place then: set such an option
    /// on a [`wallaby::Client`](::wallaby::Client) and pass that to [`within`].
    #[derive(::core::clone::Clone, ::core::fmt::Debug)]
    #[must_use = "a client does nothing until one of its methods is called"]
    pub struct Client {
        client: ::wallaby::Client,
    }
    /// A client of the service at the address `server`, whose calls `endpoint` makes.
    pub fn at(
        endpoint: &::wallaby::Endpoint,
        server: impl ::wallaby::IntoAddress,
    ) -> Client {
        within(::wallaby::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub fn within(client: ::wallaby::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Calls [`Store::load`].
        ///
        /// Loads rows.
        pub fn load(
            &self,
            table: String,
            rows: impl ::wallaby::IntoStreaming<Row>,
        ) -> ::wallaby::Call<::wallaby::One<u64>> {
            self.client.call_target(LOAD.target((table,), rows))
        }
        /// Calls [`Store::copy`].
        pub fn copy(
            &self,
            rows: impl ::wallaby::IntoStreaming<super::Client>,
        ) -> ::wallaby::Call<Many<super::Client>> {
            self.client.call_target(COPY.target((), rows))
        }
        /// Calls [`Store::put`].
        pub fn put(
            &self,
            name: String,
            content: impl ::core::convert::Into<::wallaby::Body>,
        ) -> ::wallaby::Call<::wallaby::One<()>> {
            self.client.call_target(PUT.target((name,), content))
        }
        /// As [`Client::options`](::wallaby::Client::options).
        pub fn options(self, options: ::wallaby::CallOptions) -> Self {
            within(self.client.options(options))
        }
        /// As [`Client::deadline`](::wallaby::Client::deadline).
        pub fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// As [`Client::traced`](::wallaby::Client::traced).
        pub fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// As [`Client::metadata`](::wallaby::Client::metadata).
        pub fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// As [`Client::metadata_bin`](::wallaby::Client::metadata_bin).
        pub fn metadata_bin(
            self,
            key: &::core::primitive::str,
            value: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.metadata_bin(key, value))
        }
        /// As [`Client::continuation`](::wallaby::Client::continuation).
        pub fn continuation(
            self,
            bytes: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.continuation(bytes))
        }
        /// As [`Client::durable`](::wallaby::Client::durable).
        pub fn durable(self, id: ::wallaby::DurableId) -> Self {
            within(self.client.durable(id))
        }
        /// As [`Client::fail_fast`](::wallaby::Client::fail_fast).
        pub fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// As [`Client::tolerant`](::wallaby::Client::tolerant).
        pub fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// As [`Client::in_order`](::wallaby::Client::in_order).
        pub fn in_order(self) -> Self {
            within(self.client.in_order())
        }
        /// As [`Client::budgets`](::wallaby::Client::budgets).
        pub fn budgets(self, budgets: ::wallaby::Budgets) -> Self {
            within(self.client.budgets(budgets))
        }
        /// As [`Client::ping`](::wallaby::Client::ping).
        pub fn ping(
            self,
            period: ::core::time::Duration,
            timeout: ::core::time::Duration,
        ) -> Self {
            within(self.client.ping(period, timeout))
        }
        /// As [`Client::heartbeats`](::wallaby::Client::heartbeats).
        pub fn heartbeats(self, heartbeats: ::wallaby::Heartbeats) -> Self {
            within(self.client.heartbeats(heartbeats))
        }
        /// As [`Client::stall_limit`](::wallaby::Client::stall_limit).
        pub fn stall_limit(self, limit: ::core::time::Duration) -> Self {
            within(self.client.stall_limit(limit))
        }
        /// As [`Client::retry`](::wallaby::Client::retry).
        pub fn retry(self, retry: ::wallaby::Retry) -> Self {
            within(self.client.retry(retry))
        }
        /// As [`Client::retry_budget`](::wallaby::Client::retry_budget).
        pub fn retry_budget(self, budget: ::wallaby::RetryBudget) -> Self {
            within(self.client.retry_budget(budget))
        }
        /// As [`Client::hedge`](::wallaby::Client::hedge).
        pub fn hedge(self, hedge: ::wallaby::Hedge) -> Self {
            within(self.client.hedge(hedge))
        }
        /// As [`Client::alternates`](::wallaby::Client::alternates).
        pub fn alternates(
            self,
            servers: impl ::core::iter::IntoIterator<
                Item = impl ::core::convert::Into<::wallaby::Address>,
            >,
        ) -> Self {
            within(self.client.alternates(servers))
        }
        /// As [`Client::resend`](::wallaby::Client::resend).
        pub fn resend(self, resend: ::wallaby::Resend) -> Self {
            within(self.client.resend(resend))
        }
    }
    /// The delegation target [`Store::load`].
    ///
    /// Loads rows.
    pub fn load(
        table: String,
        rows: impl ::wallaby::IntoStreaming<Row>,
    ) -> ::wallaby::Target<::wallaby::One<u64>> {
        LOAD.target((table,), rows)
    }
    /// The delegation target [`Store::copy`].
    pub fn copy(
        rows: impl ::wallaby::IntoStreaming<super::Client>,
    ) -> ::wallaby::Target<Many<super::Client>> {
        COPY.target((), rows)
    }
    /// The delegation target [`Store::put`].
    pub fn put(
        name: String,
        content: impl ::core::convert::Into<::wallaby::Body>,
    ) -> ::wallaby::Target<::wallaby::One<()>> {
        PUT.target((name,), content)
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub fn service<Server: super::Store>(server: Server) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &LOAD,
                    move |request, (table,), rows| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::Store::load(&server, request, table, rows).await
                        }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &COPY,
                    move |request, (), rows| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Store::copy(&server, request, rows).await }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &PUT,
                    move |request, (name,), content| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::Store::put(&server, request, name, content).await
                        }
                    },
                )
        };
        service
    }
    impl<Server: super::Store> super::Store for ::std::sync::Arc<Server> {
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
        fn load(
            self: &::std::sync::Arc<Self>,
            request: Self::load,
            table: String,
            rows: Streaming<Row>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Store>::load(self, request, table, rows)
        }
        fn copy(
            self: &::std::sync::Arc<Self>,
            request: Self::copy,
            rows: wallaby::Streaming<super::Client>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Store>::copy(self, request, rows)
        }
        fn put(
            self: &::std::sync::Arc<Self>,
            request: Self::put,
            name: String,
            content: Body,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Store>::put(self, request, name, content)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub trait Requests {
        /// The request of the method `load`.
        type load;
        /// The request of the method `copy`.
        type copy;
        /// The request of the method `put`.
        type put;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        type load = ::wallaby::Request<::wallaby::One<u64>>;
        type copy = ::wallaby::Request<Many<super::Client>>;
        type put = ::wallaby::Request<::wallaby::One<()>>;
    }
}
trait Blobs: blobs::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
    #[cfg(unix)]
    fn join(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<wallaby::One<u8>, self::codec::Plain>,
        blobs: Streaming<super::Blob, self::codec::Plain>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn body(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<Body>, self::codec::Plain>,
        body: Body<u8>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`Blobs`].
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
mod blobs {
    use super::*;
    /// The name of the service, with its package.
    pub(super) const SERVICE: &::core::primitive::str = "demo.Blobs";
    #[cfg(unix)]
    /// The method `join` of the service.
    pub(super) static JOIN: ::wallaby::Method<
        (),
        wallaby::One<u8>,
        super::codec::Plain,
        Streaming<super::super::Blob, super::codec::Plain>,
    > = ::wallaby::Method::new("demo.Blobs/join");
    /// The method `body` of the service.
    pub(super) static BODY: ::wallaby::Method<
        (Body<u8>,),
        ::wallaby::One<Body>,
        super::codec::Plain,
    > = ::wallaby::Method::new("demo.Blobs/body");
    /// Calls the methods of [`Blobs`] at one server.
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
        server: impl ::wallaby::IntoAddress,
    ) -> Client {
        within(::wallaby::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub(super) fn within(client: ::wallaby::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Calls [`Blobs::join`].
        #[cfg(unix)]
        pub(super) fn join(
            &self,
            blobs: impl ::wallaby::IntoStreaming<super::super::Blob, super::codec::Plain>,
        ) -> ::wallaby::Call<wallaby::One<u8>, super::codec::Plain> {
            self.client.call_target(JOIN.target((), blobs))
        }
        /// Calls [`Blobs::body`].
        pub(super) fn body(
            &self,
            body: Body<u8>,
        ) -> ::wallaby::Call<::wallaby::One<Body>, super::codec::Plain> {
            self.client.call(&BODY, (body,))
        }
        /// As [`Client::options`](::wallaby::Client::options).
        pub(super) fn options(self, options: ::wallaby::CallOptions) -> Self {
            within(self.client.options(options))
        }
        /// As [`Client::deadline`](::wallaby::Client::deadline).
        pub(super) fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// As [`Client::traced`](::wallaby::Client::traced).
        pub(super) fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// As [`Client::metadata`](::wallaby::Client::metadata).
        pub(super) fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// As [`Client::metadata_bin`](::wallaby::Client::metadata_bin).
        pub(super) fn metadata_bin(
            self,
            key: &::core::primitive::str,
            value: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.metadata_bin(key, value))
        }
        /// As [`Client::continuation`](::wallaby::Client::continuation).
        pub(super) fn continuation(
            self,
            bytes: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.continuation(bytes))
        }
        /// As [`Client::durable`](::wallaby::Client::durable).
        pub(super) fn durable(self, id: ::wallaby::DurableId) -> Self {
            within(self.client.durable(id))
        }
        /// As [`Client::fail_fast`](::wallaby::Client::fail_fast).
        pub(super) fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// As [`Client::tolerant`](::wallaby::Client::tolerant).
        pub(super) fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// As [`Client::in_order`](::wallaby::Client::in_order).
        pub(super) fn in_order(self) -> Self {
            within(self.client.in_order())
        }
        /// As [`Client::budgets`](::wallaby::Client::budgets).
        pub(super) fn budgets(self, budgets: ::wallaby::Budgets) -> Self {
            within(self.client.budgets(budgets))
        }
        /// As [`Client::ping`](::wallaby::Client::ping).
        pub(super) fn ping(
            self,
            period: ::core::time::Duration,
            timeout: ::core::time::Duration,
        ) -> Self {
            within(self.client.ping(period, timeout))
        }
        /// As [`Client::heartbeats`](::wallaby::Client::heartbeats).
        pub(super) fn heartbeats(self, heartbeats: ::wallaby::Heartbeats) -> Self {
            within(self.client.heartbeats(heartbeats))
        }
        /// As [`Client::stall_limit`](::wallaby::Client::stall_limit).
        pub(super) fn stall_limit(self, limit: ::core::time::Duration) -> Self {
            within(self.client.stall_limit(limit))
        }
        /// As [`Client::retry`](::wallaby::Client::retry).
        pub(super) fn retry(self, retry: ::wallaby::Retry) -> Self {
            within(self.client.retry(retry))
        }
        /// As [`Client::retry_budget`](::wallaby::Client::retry_budget).
        pub(super) fn retry_budget(self, budget: ::wallaby::RetryBudget) -> Self {
            within(self.client.retry_budget(budget))
        }
        /// As [`Client::hedge`](::wallaby::Client::hedge).
        pub(super) fn hedge(self, hedge: ::wallaby::Hedge) -> Self {
            within(self.client.hedge(hedge))
        }
        /// As [`Client::alternates`](::wallaby::Client::alternates).
        pub(super) fn alternates(
            self,
            servers: impl ::core::iter::IntoIterator<
                Item = impl ::core::convert::Into<::wallaby::Address>,
            >,
        ) -> Self {
            within(self.client.alternates(servers))
        }
        /// As [`Client::resend`](::wallaby::Client::resend).
        pub(super) fn resend(self, resend: ::wallaby::Resend) -> Self {
            within(self.client.resend(resend))
        }
    }
    /// The delegation target [`Blobs::join`].
    #[cfg(unix)]
    pub(super) fn join(
        blobs: impl ::wallaby::IntoStreaming<super::super::Blob, super::codec::Plain>,
    ) -> ::wallaby::Target<wallaby::One<u8>, super::codec::Plain> {
        JOIN.target((), blobs)
    }
    /// The delegation target [`Blobs::body`].
    pub(super) fn body(
        body: Body<u8>,
    ) -> ::wallaby::Target<::wallaby::One<Body>, super::codec::Plain> {
        BODY.target((body,))
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub(super) fn service<Server: super::Blobs>(server: Server) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        #[cfg(unix)]
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &JOIN,
                    move |request, (), blobs| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Blobs::join(&server, request, blobs).await }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &BODY,
                    move |request, (body,)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Blobs::body(&server, request, body).await }
                    },
                )
        };
        service
    }
    impl<Server: super::Blobs> super::Blobs for ::std::sync::Arc<Server> {
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
        #[cfg(unix)]
        fn join(
            self: &::std::sync::Arc<Self>,
            request: Self::join,
            blobs: Streaming<super::super::Blob, super::codec::Plain>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Blobs>::join(self, request, blobs)
        }
        fn body(
            self: &::std::sync::Arc<Self>,
            request: Self::body,
            body: Body<u8>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Blobs>::body(self, request, body)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub(super) trait Requests {
        #[cfg(unix)]
        /// The request of the method `join`.
        type join;
        /// The request of the method `body`.
        type body;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        #[cfg(unix)]
        type join = ::wallaby::Request<wallaby::One<u8>, super::codec::Plain>;
        type body = ::wallaby::Request<::wallaby::One<Body>, super::codec::Plain>;
    }
}
