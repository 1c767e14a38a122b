//! A generic server, with attributes and with a type `Request` of the user's own.
#[cfg(feature = "index")]
impl<T: Store, const N: usize> Index for Shard<T, N>
where
    T: Clone,
{
    #[cfg(unix)]
    #[allow(unused_variables)]
    fn send(
        self: &::std::sync::Arc<Self>,
        request: Self::send,
        request: Request,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0> {
            type __Returned;
            fn send(
                &self,
                request: A0,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl<T: Store, const N: usize> __WallabyHandler<Request> for Shard<T, N>
        where
            T: Clone,
        {
            type __Returned = Vec<T::Item>;
            #[allow(unused_variables)]
            #[tracing::instrument(skip(self))]
            async fn send(&self, request: Request) -> Vec<T::Item> {
                self.store.items(N)
            }
        }
        let running = <Self as __WallabyHandler<_>>::send(self, request);
        async move {
            let output = running.await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    #[allow(
        clippy::too_many_arguments,
        reason = "the receiver and the request are added to what the service states"
    )]
    fn six(
        self: &::std::sync::Arc<Self>,
        request: Self::six,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1, A2, A3, A4, A5> {
            type __Returned;
            fn six(
                &self,
                a: A0,
                b: A1,
                c: A2,
                d: A3,
                e: A4,
                f: A5,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl<T: Store, const N: usize> __WallabyHandler<u8, u8, u8, u8, u8, u8>
        for Shard<T, N>
        where
            T: Clone,
        {
            type __Returned = ();
            async fn six(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {}
        }
        let running = <Self as __WallabyHandler<
            _,
            _,
            _,
            _,
            _,
            _,
        >>::six(self, a, b, c, d, e, f);
        async move {
            let output = running.await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    const MISSING_ATTRIBUTE_wallaby_serve: () = ();
}
