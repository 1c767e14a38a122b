//! Package, codec, a private trait, and what happens to attributes.
#[cfg(feature = "blobs")]
trait BlobStore: blob_store::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
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
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
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
pub(super) trait Near: near::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
}
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
        /// As [`Client::deadline`](::wallaby::Client::deadline).
        pub(in super::super) fn deadline(self, after: ::core::time::Duration) -> Self {
            within(self.client.deadline(after))
        }
        /// As [`Client::traced`](::wallaby::Client::traced).
        pub(in super::super) fn traced(self) -> Self {
            within(self.client.traced())
        }
        /// As [`Client::metadata`](::wallaby::Client::metadata).
        pub(in super::super) fn metadata(
            self,
            key: &::core::primitive::str,
            value: &::core::primitive::str,
        ) -> Self {
            within(self.client.metadata(key, value))
        }
        /// As [`Client::metadata_bin`](::wallaby::Client::metadata_bin).
        pub(in super::super) fn metadata_bin(
            self,
            key: &::core::primitive::str,
            value: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.metadata_bin(key, value))
        }
        /// As [`Client::continuation`](::wallaby::Client::continuation).
        pub(in super::super) fn continuation(
            self,
            bytes: impl ::core::convert::Into<::wallaby::__private::Bytes>,
        ) -> Self {
            within(self.client.continuation(bytes))
        }
        /// As [`Client::durable`](::wallaby::Client::durable).
        pub(in super::super) fn durable(self, id: ::wallaby::DurableId) -> Self {
            within(self.client.durable(id))
        }
        /// As [`Client::fail_fast`](::wallaby::Client::fail_fast).
        pub(in super::super) fn fail_fast(self) -> Self {
            within(self.client.fail_fast())
        }
        /// As [`Client::tolerant`](::wallaby::Client::tolerant).
        pub(in super::super) fn tolerant(self) -> Self {
            within(self.client.tolerant())
        }
        /// As [`Client::in_order`](::wallaby::Client::in_order).
        pub(in super::super) fn in_order(self) -> Self {
            within(self.client.in_order())
        }
        /// As [`Client::budgets`](::wallaby::Client::budgets).
        pub(in super::super) fn budgets(self, budgets: ::wallaby::Budgets) -> Self {
            within(self.client.budgets(budgets))
        }
        /// As [`Client::ping`](::wallaby::Client::ping).
        pub(in super::super) fn ping(
            self,
            period: ::core::time::Duration,
            timeout: ::core::time::Duration,
        ) -> Self {
            within(self.client.ping(period, timeout))
        }
        /// As [`Client::stall_limit`](::wallaby::Client::stall_limit).
        pub(in super::super) fn stall_limit(
            self,
            limit: ::core::time::Duration,
        ) -> Self {
            within(self.client.stall_limit(limit))
        }
        /// As [`Client::retry`](::wallaby::Client::retry).
        pub(in super::super) fn retry(self, retry: ::wallaby::Retry) -> Self {
            within(self.client.retry(retry))
        }
        /// As [`Client::retry_budget`](::wallaby::Client::retry_budget).
        pub(in super::super) fn retry_budget(
            self,
            budget: ::wallaby::RetryBudget,
        ) -> Self {
            within(self.client.retry_budget(budget))
        }
        /// As [`Client::hedge`](::wallaby::Client::hedge).
        pub(in super::super) fn hedge(self, hedge: ::wallaby::Hedge) -> Self {
            within(self.client.hedge(hedge))
        }
        /// As [`Client::alternates`](::wallaby::Client::alternates).
        pub(in super::super) fn alternates(
            self,
            servers: impl ::core::iter::IntoIterator<
                Item = impl ::core::convert::Into<::wallaby::Address>,
            >,
        ) -> Self {
            within(self.client.alternates(servers))
        }
        /// As [`Client::resend`](::wallaby::Client::resend).
        pub(in super::super) fn resend(self, resend: ::wallaby::Resend) -> Self {
            within(self.client.resend(resend))
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
    impl<Server: super::Near> super::Near for ::std::sync::Arc<Server> {
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub(in super::super) trait Requests {}
    impl<Server: ?::core::marker::Sized> Requests for Server {}
}
