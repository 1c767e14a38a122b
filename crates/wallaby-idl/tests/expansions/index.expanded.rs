//! A plain service: one method with many answers, one with a single one, one that only says when it is done.
/// Finds documents by their words.
pub trait Index: index::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
    /// Looks a word up.
    ///
    /// In all documents.
    fn lookup(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<Many<Document>>,
        word: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    /// How many words there are.
    fn size(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<u64>>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn insert(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<()>>,
        word: String,
        document: Document,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`Index`].
///
/// Finds documents by their words.
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
pub mod index {
    use super::*;
    /// The name of the service, with its package.
    pub const SERVICE: &::core::primitive::str = ::core::concat!(
        ::core::env!("CARGO_PKG_NAME"), ".Index"
    );
    /// The method `lookup` of the service.
    pub static LOOKUP: ::wallaby::Method<(String,), Many<Document>> = ::wallaby::Method::new(
        ::core::concat!(::core::env!("CARGO_PKG_NAME"), ".Index/lookup"),
    );
    /// The method `size` of the service.
    pub static SIZE: ::wallaby::Method<(), ::wallaby::One<u64>> = ::wallaby::Method::new(
        ::core::concat!(::core::env!("CARGO_PKG_NAME"), ".Index/size"),
    );
    /// The method `insert` of the service.
    pub static INSERT: ::wallaby::Method<(String, Document), ::wallaby::One<()>> = ::wallaby::Method::new(
        ::core::concat!(::core::env!("CARGO_PKG_NAME"), ".Index/insert"),
    );
    /// Calls the methods of [`Index`] at one server.
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
        server: impl ::core::convert::Into<::wallaby::Address>,
    ) -> Client {
        within(::wallaby::Client::new(endpoint, server))
    }
    /// A client of the service whose calls are made by `client`: with its server and its options.
    pub fn within(client: ::wallaby::Client) -> Client {
        Client { client: client }
    }
    impl Client {
        /// Calls [`Index::lookup`].
        ///
        /// Looks a word up.
        ///
        /// In all documents.
        pub fn lookup(&self, word: String) -> ::wallaby::Call<Many<Document>> {
            self.client.call(&LOOKUP, (word,))
        }
        /// Calls [`Index::size`].
        ///
        /// How many words there are.
        pub fn size(&self) -> ::wallaby::Call<::wallaby::One<u64>> {
            self.client.call(&SIZE, ())
        }
        /// Calls [`Index::insert`].
        pub fn insert(
            &self,
            word: String,
            document: Document,
        ) -> ::wallaby::Call<::wallaby::One<()>> {
            self.client.call(&INSERT, (word, document))
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
    /// The delegation target [`Index::lookup`].
    ///
    /// Looks a word up.
    ///
    /// In all documents.
    pub fn lookup(word: String) -> ::wallaby::Target<Many<Document>> {
        LOOKUP.target((word,))
    }
    /// The delegation target [`Index::size`].
    ///
    /// How many words there are.
    pub fn size() -> ::wallaby::Target<::wallaby::One<u64>> {
        SIZE.target(())
    }
    /// The delegation target [`Index::insert`].
    pub fn insert(
        word: String,
        document: Document,
    ) -> ::wallaby::Target<::wallaby::One<()>> {
        INSERT.target((word, document))
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub fn service<Server: super::Index>(server: Server) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &LOOKUP,
                    move |request, (word,)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Index::lookup(&server, request, word).await }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &SIZE,
                    move |request, ()| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::Index::size(&server, request).await }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &INSERT,
                    move |request, (word, document)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::Index::insert(&server, request, word, document).await
                        }
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
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Index>::lookup(self, request, word)
        }
        fn size(
            self: &::std::sync::Arc<Self>,
            request: Self::size,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Index>::size(self, request)
        }
        fn insert(
            self: &::std::sync::Arc<Self>,
            request: Self::insert,
            word: String,
            document: Document,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::Index>::insert(self, request, word, document)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub trait Requests {
        /// The request of the method `lookup`.
        type lookup;
        /// The request of the method `size`.
        type size;
        /// The request of the method `insert`.
        type insert;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        type lookup = ::wallaby::Request<Many<Document>>;
        type size = ::wallaby::Request<::wallaby::One<u64>>;
        type insert = ::wallaby::Request<::wallaby::One<()>>;
    }
}
