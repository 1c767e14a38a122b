//! Programs that know the framework by another name: from the module the same path leads to it.
trait Index: index::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
    fn lookup(
        self: &::std::sync::Arc<Self>,
        request: self::facade::rpc::Request<self::facade::rpc::One<u64>>,
        word: String,
        rows: Streaming<Row>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), self::facade::rpc::Status>,
    > + ::core::marker::Send;
    fn load(
        self: &::std::sync::Arc<Self>,
        request: self::facade::rpc::Request<::wallaby::Many<u64>>,
        body: Body,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), self::facade::rpc::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`Index`].
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
mod index {
    use super::*;
    /// The name of the service, with its package.
    pub(super) const SERVICE: &::core::primitive::str = "demo.Index";
    /// The method `lookup` of the service.
    pub(super) static LOOKUP: super::facade::rpc::Method<
        (String,),
        super::facade::rpc::One<u64>,
        super::facade::rpc::codec::Postcard,
        Streaming<Row>,
    > = super::facade::rpc::Method::new("demo.Index/lookup");
    /// The method `load` of the service.
    pub(super) static LOAD: super::facade::rpc::Method<
        (),
        ::wallaby::Many<u64>,
        super::facade::rpc::codec::Postcard,
        Body,
    > = super::facade::rpc::Method::new("demo.Index/load");
    /// Calls the methods of [`Index`] at one server.
    ///
    /// A method may have the name of one of the options below and takes its place then: set such an option
    /// on a [`wallaby::Client`](super::facade::rpc::Client) and pass that to [`within`].
    #[derive(::core::clone::Clone, ::core::fmt::Debug)]
    #[must_use = "a client does nothing until one of its methods is called"]
    pub(super) struct Client {
        client: super::facade::rpc::Client,
    }
    /// A client of the service at the address `server`, whose calls `endpoint` makes.
    pub(super) fn at(
        endpoint: &super::facade::rpc::Endpoint,
        server: impl super::facade::rpc::IntoAddress,
    ) -> Client {
        within(super::facade::rpc::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub(super) fn within(client: super::facade::rpc::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Calls [`Index::lookup`].
        pub(super) fn lookup(
            &self,
            word: String,
            rows: impl super::facade::rpc::IntoStreaming<Row>,
        ) -> super::facade::rpc::Call<super::facade::rpc::One<u64>> {
            self.client.call_target(LOOKUP.target((word,), rows))
        }
        /// Calls [`Index::load`].
        pub(super) fn load(
            &self,
            body: impl ::core::convert::Into<super::facade::rpc::Body>,
        ) -> super::facade::rpc::Call<::wallaby::Many<u64>> {
            self.client.call_target(LOAD.target((), body))
        }
        /// As [`Client::options`](super::facade::rpc::Client::options).
        pub(super) fn options(self, options: super::facade::rpc::CallOptions) -> Self {
            within(self.client.options(options))
        }
        /// As [`Client::deadline`](super::facade::rpc::Client::deadline).
        pub(super) fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// As [`Client::traced`](super::facade::rpc::Client::traced).
        pub(super) fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// As [`Client::metadata`](super::facade::rpc::Client::metadata).
        pub(super) fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// As [`Client::metadata_bin`](super::facade::rpc::Client::metadata_bin).
        pub(super) fn metadata_bin(
            self,
            key: &::core::primitive::str,
            value: impl ::core::convert::Into<super::facade::rpc::__private::Bytes>,
        ) -> Self {
            within(self.client.metadata_bin(key, value))
        }
        /// As [`Client::continuation`](super::facade::rpc::Client::continuation).
        pub(super) fn continuation(
            self,
            bytes: impl ::core::convert::Into<super::facade::rpc::__private::Bytes>,
        ) -> Self {
            within(self.client.continuation(bytes))
        }
        /// As [`Client::durable`](super::facade::rpc::Client::durable).
        pub(super) fn durable(self, id: super::facade::rpc::DurableId) -> Self {
            within(self.client.durable(id))
        }
        /// As [`Client::fail_fast`](super::facade::rpc::Client::fail_fast).
        pub(super) fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// As [`Client::tolerant`](super::facade::rpc::Client::tolerant).
        pub(super) fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// As [`Client::in_order`](super::facade::rpc::Client::in_order).
        pub(super) fn in_order(self) -> Self {
            within(self.client.in_order())
        }
        /// As [`Client::budgets`](super::facade::rpc::Client::budgets).
        pub(super) fn budgets(self, budgets: super::facade::rpc::Budgets) -> Self {
            within(self.client.budgets(budgets))
        }
        /// As [`Client::ping`](super::facade::rpc::Client::ping).
        pub(super) fn ping(
            self,
            period: ::core::time::Duration,
            timeout: ::core::time::Duration,
        ) -> Self {
            within(self.client.ping(period, timeout))
        }
        /// As [`Client::heartbeats`](super::facade::rpc::Client::heartbeats).
        pub(super) fn heartbeats(
            self,
            heartbeats: super::facade::rpc::Heartbeats,
        ) -> Self {
            within(self.client.heartbeats(heartbeats))
        }
        /// As [`Client::stall_limit`](super::facade::rpc::Client::stall_limit).
        pub(super) fn stall_limit(self, limit: ::core::time::Duration) -> Self {
            within(self.client.stall_limit(limit))
        }
        /// As [`Client::retry`](super::facade::rpc::Client::retry).
        pub(super) fn retry(self, retry: super::facade::rpc::Retry) -> Self {
            within(self.client.retry(retry))
        }
        /// As [`Client::retry_budget`](super::facade::rpc::Client::retry_budget).
        pub(super) fn retry_budget(
            self,
            budget: super::facade::rpc::RetryBudget,
        ) -> Self {
            within(self.client.retry_budget(budget))
        }
        /// As [`Client::hedge`](super::facade::rpc::Client::hedge).
        pub(super) fn hedge(self, hedge: super::facade::rpc::Hedge) -> Self {
            within(self.client.hedge(hedge))
        }
        /// As [`Client::alternates`](super::facade::rpc::Client::alternates).
        pub(super) fn alternates(
            self,
            servers: impl ::core::iter::IntoIterator<
                Item = impl ::core::convert::Into<super::facade::rpc::Address>,
            >,
        ) -> Self {
            within(self.client.alternates(servers))
        }
        /// As [`Client::resend`](super::facade::rpc::Client::resend).
        pub(super) fn resend(self, resend: super::facade::rpc::Resend) -> Self {
            within(self.client.resend(resend))
        }
    }
    /// The delegation target [`Index::lookup`].
    pub(super) fn lookup(
        word: String,
        rows: impl super::facade::rpc::IntoStreaming<Row>,
    ) -> super::facade::rpc::Target<super::facade::rpc::One<u64>> {
        LOOKUP.target((word,), rows)
    }
    /// The delegation target [`Index::load`].
    pub(super) fn load(
        body: impl ::core::convert::Into<super::facade::rpc::Body>,
    ) -> super::facade::rpc::Target<::wallaby::Many<u64>> {
        LOAD.target((), body)
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub(super) fn service<Server: super::Index>(
        server: Server,
    ) -> super::facade::rpc::Service {
        let server = ::std::sync::Arc::new(server);
        let service = super::facade::rpc::Service::new(SERVICE);
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &LOOKUP,
                    move |request, (word,), rows| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::Index::lookup(&server, request, word, rows).await
                        }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .streaming_method(
                    &LOAD,
                    move |request, (), body| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Index::load(&server, request, body).await }
                    },
                )
        };
        service
    }
    impl<Server: super::Index> super::Index for ::std::sync::Arc<Server> {
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
        fn lookup(
            self: &::std::sync::Arc<Self>,
            request: Self::lookup,
            word: String,
            rows: Streaming<Row>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), super::facade::rpc::Status>,
        > + ::core::marker::Send {
            <Server as super::Index>::lookup(self, request, word, rows)
        }
        fn load(
            self: &::std::sync::Arc<Self>,
            request: Self::load,
            body: Body,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), super::facade::rpc::Status>,
        > + ::core::marker::Send {
            <Server as super::Index>::load(self, request, body)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub(super) trait Requests {
        /// The request of the method `lookup`.
        type lookup;
        /// The request of the method `load`.
        type load;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        type lookup = super::facade::rpc::Request<super::facade::rpc::One<u64>>;
        type load = super::facade::rpc::Request<::wallaby::Many<u64>>;
    }
}
impl Index for MyIndex {
    fn lookup(
        self: &::std::sync::Arc<Self>,
        request: Self::lookup,
        word: String,
        rows: Streaming<Row>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), self::facade::rpc::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1> {
            type __Returned;
            fn lookup(
                &self,
                word: A0,
                rows: A1,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler<String, Streaming<Row>> for MyIndex {
            type __Returned = u64;
            async fn lookup(&self, word: String, rows: Streaming<Row>) -> u64 {
                ::wallaby::number()
            }
        }
        let running = <Self as __WallabyHandler<_, _>>::lookup(self, word, rows);
        async move {
            let output = running.await;
            let output = self::facade::rpc::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    fn load(
        self: &::std::sync::Arc<Self>,
        request: Request<Many<u64>>,
        body: Body,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), self::facade::rpc::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1> {
            type __Returned;
            fn load(&self, request: A0, body: A1) -> Self::__Returned;
        }
        impl __WallabyHandler<Request<Many<u64>>, Body> for MyIndex {
            type __Returned = Result<(), Status>;
            fn load(
                &self,
                request: Request<Many<u64>>,
                body: Body,
            ) -> Result<(), Status> {
                self.load_from(body)
            }
        }
        let server = ::std::sync::Arc::clone(self);
        async move {
            let output = self::facade::rpc::__private::blocking_with(
                    request,
                    move |request| {
                        <Self as __WallabyHandler<_, _>>::load(&server, request, body)
                    },
                )
                .await;
            output
        }
    }
    const MISSING_ATTRIBUTE_wallaby_serve: () = ();
}
