//! Names that meet what the macro generates: raw identifiers, options, arguments, and types.
pub trait HTTPFile: http_file::Requests + ::core::marker::Send + ::core::marker::Sync + 'static {
    #[doc(hidden)]
    #[allow(non_upper_case_globals, reason = "who reads it reads an error")]
    const MISSING_ATTRIBUTE_wallaby_serve: ();
    fn r#type(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<Client>>,
        r#match: u8,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn deadline(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<Many<TYPE>>,
        request: Vec<Client>,
        server: [Requests; SERVICE.len()],
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    fn metadata(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<[u8; deadline()]>>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
    #[allow(
        clippy::too_many_arguments,
        reason = "the receiver and the request are added to what the service states"
    )]
    fn getAttr(
        self: &::std::sync::Arc<Self>,
        request: ::wallaby::Request<::wallaby::One<Server>>,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send;
}
/// Client, delegation targets and registration of the service [`HTTPFile`].
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    deprecated,
    unused_imports,
    unused_qualifications,
    reason = "everything in here is generated, and not every program uses all of it"
)]
pub mod http_file {
    use super::*;
    /// The name of the service, with its package.
    pub const SERVICE: &::core::primitive::str = "demo.HTTPFile";
    /// The method `type` of the service.
    pub static TYPE: ::wallaby::Method<(u8,), ::wallaby::One<super::Client>> = ::wallaby::Method::new(
        "demo.HTTPFile/type",
    );
    /// The method `deadline` of the service.
    pub static DEADLINE: ::wallaby::Method<
        (Vec<super::Client>, [super::Requests; super::SERVICE.len()]),
        Many<super::TYPE>,
    > = ::wallaby::Method::new("demo.HTTPFile/deadline");
    /// The method `metadata` of the service.
    pub static METADATA: ::wallaby::Method<
        (),
        ::wallaby::One<[u8; super::deadline()]>,
    > = ::wallaby::Method::new("demo.HTTPFile/metadata");
    /// The method `getAttr` of the service.
    pub static GET_ATTR: ::wallaby::Method<
        (u8, u8, u8, u8, u8, u8),
        ::wallaby::One<super::Server>,
    > = ::wallaby::Method::new("demo.HTTPFile/getAttr");
    /// Calls the methods of [`HTTPFile`] at one server.
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
        /// Calls [`HTTPFile::type`].
        pub fn r#type(
            &self,
            r#match: u8,
        ) -> ::wallaby::Call<::wallaby::One<super::Client>> {
            self.client.call(&TYPE, (r#match,))
        }
        /// Calls [`HTTPFile::deadline`].
        pub fn deadline(
            &self,
            request: Vec<super::Client>,
            server: [super::Requests; super::SERVICE.len()],
        ) -> ::wallaby::Call<Many<super::TYPE>> {
            self.client.call(&DEADLINE, (request, server))
        }
        /// Calls [`HTTPFile::metadata`].
        pub fn metadata(
            &self,
        ) -> ::wallaby::Call<::wallaby::One<[u8; super::deadline()]>> {
            self.client.call(&METADATA, ())
        }
        /// Calls [`HTTPFile::getAttr`].
        pub fn getAttr(
            &self,
            a: u8,
            b: u8,
            c: u8,
            d: u8,
            e: u8,
            f: u8,
        ) -> ::wallaby::Call<::wallaby::One<super::Server>> {
            self.client.call(&GET_ATTR, (a, b, c, d, e, f))
        }
        /// As [`Client::traced`](::wallaby::Client::traced).
        pub fn traced(self) -> Self {
            within(self.client.traced())
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
    /// The delegation target [`HTTPFile::type`].
    pub fn r#type(r#match: u8) -> ::wallaby::Target<::wallaby::One<super::Client>> {
        TYPE.target((r#match,))
    }
    /// The delegation target [`HTTPFile::deadline`].
    pub fn deadline(
        request: Vec<super::Client>,
        server: [super::Requests; super::SERVICE.len()],
    ) -> ::wallaby::Target<Many<super::TYPE>> {
        DEADLINE.target((request, server))
    }
    /// The delegation target [`HTTPFile::metadata`].
    pub fn metadata() -> ::wallaby::Target<::wallaby::One<[u8; super::deadline()]>> {
        METADATA.target(())
    }
    /// The delegation target [`HTTPFile::getAttr`].
    pub fn getAttr(
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
    ) -> ::wallaby::Target<::wallaby::One<super::Server>> {
        GET_ATTR.target((a, b, c, d, e, f))
    }
    /// The service as `server` implements it, to be passed to an endpoint.
    ///
    /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
    #[must_use = "a service answers nothing until an endpoint serves it"]
    pub fn service<Server: super::HTTPFile>(server: Server) -> ::wallaby::Service {
        let server = ::std::sync::Arc::new(server);
        let service = ::wallaby::Service::new(SERVICE);
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &TYPE,
                    move |request, (r#match,)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::HTTPFile::r#type(&server, request, r#match).await
                        }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &DEADLINE,
                    move |request, (request, server)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::HTTPFile::deadline(&server, request, request, server)
                                .await
                        }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &METADATA,
                    move |request, ()| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move { super::HTTPFile::metadata(&server, request).await }
                    },
                )
        };
        let service = {
            let server = ::std::sync::Arc::clone(&server);
            service
                .method(
                    &GET_ATTR,
                    move |request, (a, b, c, d, e, f)| {
                        let server = ::std::sync::Arc::clone(&server);
                        async move {
                            super::HTTPFile::getAttr(&server, request, a, b, c, d, e, f)
                                .await
                        }
                    },
                )
        };
        service
    }
    impl<Server: super::HTTPFile> super::HTTPFile for ::std::sync::Arc<Server> {
        const MISSING_ATTRIBUTE_wallaby_serve: () = ();
        fn r#type(
            self: &::std::sync::Arc<Self>,
            request: Self::r#type,
            r#match: u8,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::HTTPFile>::r#type(self, request, r#match)
        }
        fn deadline(
            self: &::std::sync::Arc<Self>,
            request: Self::deadline,
            request: Vec<super::Client>,
            server: [super::Requests; super::SERVICE.len()],
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::HTTPFile>::deadline(self, request, request, server)
        }
        fn metadata(
            self: &::std::sync::Arc<Self>,
            request: Self::metadata,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::HTTPFile>::metadata(self, request)
        }
        fn getAttr(
            self: &::std::sync::Arc<Self>,
            request: Self::getAttr,
            a: u8,
            b: u8,
            c: u8,
            d: u8,
            e: u8,
            f: u8,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), ::wallaby::Status>,
        > + ::core::marker::Send {
            <Server as super::HTTPFile>::getAttr(self, request, a, b, c, d, e, f)
        }
    }
    /// The type of the request that a handler gets, for each method by its name. Every type implements this.
    #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
    pub trait Requests {
        /// The request of the method `type`.
        type r#type;
        /// The request of the method `deadline`.
        type deadline;
        /// The request of the method `metadata`.
        type metadata;
        /// The request of the method `getAttr`.
        type getAttr;
    }
    impl<Server: ?::core::marker::Sized> Requests for Server {
        type r#type = ::wallaby::Request<::wallaby::One<super::Client>>;
        type deadline = ::wallaby::Request<Many<super::TYPE>>;
        type metadata = ::wallaby::Request<::wallaby::One<[u8; super::deadline()]>>;
        type getAttr = ::wallaby::Request<::wallaby::One<super::Server>>;
    }
}
