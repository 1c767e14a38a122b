//! All forms of handlers.
impl Index for MyIndex {
    /// Answers through its request.
    fn lookup(
        self: &::std::sync::Arc<Self>,
        request: Request<Many<Document>>,
        word: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1> {
            type __Returned;
            fn lookup(
                &self,
                request: A0,
                word: A1,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler<Request<Many<Document>>, String> for MyIndex {
            type __Returned = Result<(), Status>;
            async fn lookup(
                &self,
                request: Request<Many<Document>>,
                word: String,
            ) -> Result<(), Status> {
                request.reply(self.find(&word)).await
            }
        }
        <Self as __WallabyHandler<_, _>>::lookup(self, request, word)
    }
    fn forget(
        self: &::std::sync::Arc<Self>,
        request: Request<One<()>>,
        argument1: (u64, u64),
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1> {
            type __Returned;
            fn forget(
                &self,
                request: A0,
                argument1: A1,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler<Request<One<()>>, (u64, u64)> for MyIndex {
            type __Returned = ();
            async fn forget(&self, request: Request<One<()>>, (from, to): (u64, u64)) {
                request.respond(()).await.ok();
            }
        }
        let running = <Self as __WallabyHandler<_, _>>::forget(self, request, argument1);
        async move {
            let output = running.await;
            let () = output;
            ::core::result::Result::Ok(())
        }
    }
    fn size(
        self: &::std::sync::Arc<Self>,
        request: Self::size,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler {
            type __Returned;
            fn size(
                &self,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler for MyIndex {
            type __Returned = u64;
            async fn size(&self) -> u64 {
                self.words.len()
            }
        }
        let running = <Self as __WallabyHandler>::size(self);
        async move {
            let output = running.await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    fn first(
        self: &::std::sync::Arc<Self>,
        request: Self::first,
        word: String,
        argument1: u8,
        argument2: u8,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0, A1, A2> {
            type __Returned;
            fn first(
                self: &Arc<Self>,
                word: A0,
                argument1: A1,
                argument2: A2,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler<String, u8, u8> for MyIndex {
            type __Returned = Result<Document, Status>;
            async fn first(
                self: &Arc<Self>,
                mut word: String,
                _: u8,
                _unused: u8,
            ) -> Result<Document, Status> {
                word.push('.');
                self.find(&word)
            }
        }
        let running = <Self as __WallabyHandler<
            _,
            _,
            _,
        >>::first(self, word, argument1, argument2);
        async move {
            let output = running.await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    fn clear(
        self: &::std::sync::Arc<Self>,
        request: Self::clear,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler {
            type __Returned;
            fn clear(
                &self,
            ) -> impl ::core::future::Future<
                Output = Self::__Returned,
            > + ::core::marker::Send;
        }
        impl __WallabyHandler for MyIndex {
            type __Returned = ();
            async fn clear(&self) {
                self.words.clear();
            }
        }
        let running = <Self as __WallabyHandler>::clear(self);
        async move {
            let output = running.await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    fn scan(
        self: &::std::sync::Arc<Self>,
        request: Self::scan,
        pattern: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0> {
            type __Returned;
            fn scan(&self, pattern: A0) -> Self::__Returned;
        }
        impl __WallabyHandler<String> for MyIndex {
            type __Returned = Result<u64, Status>;
            fn scan(&self, pattern: String) -> Result<u64, Status> {
                self.read(&pattern)
            }
        }
        let server = ::std::sync::Arc::clone(self);
        async move {
            let output = ::wallaby::__private::blocking_beside(
                    &request,
                    move || <Self as __WallabyHandler<_>>::scan(&server, pattern),
                )
                .await;
            let output = ::wallaby::__private::into_answer(&request, output)?;
            request.respond(output).await.map_err(::core::convert::Into::into)
        }
    }
    fn copy(
        self: &::std::sync::Arc<Self>,
        request: wallaby::Request<Many<Document>, Raw>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0> {
            type __Returned;
            fn copy(&self, request: A0) -> Self::__Returned;
        }
        impl __WallabyHandler<wallaby::Request<Many<Document>, Raw>> for MyIndex {
            type __Returned = Result<(), Status>;
            fn copy(
                &self,
                request: wallaby::Request<Many<Document>, Raw>,
            ) -> Result<(), Status> {
                self.copy_to(request)
            }
        }
        let server = ::std::sync::Arc::clone(self);
        async move {
            let output = ::wallaby::__private::blocking_with(
                    request,
                    move |request| {
                        <Self as __WallabyHandler<_>>::copy(&server, request)
                    },
                )
                .await;
            output
        }
    }
    fn sync(
        self: &::std::sync::Arc<Self>,
        request: Request<One<()>>,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::wallaby::Status>,
    > + ::core::marker::Send {
        trait __WallabyHandler<A0> {
            type __Returned;
            fn sync(self: &std::sync::Arc<Self>, request: A0) -> Self::__Returned;
        }
        impl __WallabyHandler<Request<One<()>>> for MyIndex {
            type __Returned = ();
            fn sync(self: &std::sync::Arc<Self>, request: Request<One<()>>) {
                self.flush(request);
            }
        }
        let server = ::std::sync::Arc::clone(self);
        async move {
            let output = ::wallaby::__private::blocking_with(
                    request,
                    move |request| {
                        <Self as __WallabyHandler<_>>::sync(&server, request)
                    },
                )
                .await;
            let () = output;
            ::core::result::Result::Ok(())
        }
    }
    const MISSING_ATTRIBUTE_wallaby_serve: () = ();
}
