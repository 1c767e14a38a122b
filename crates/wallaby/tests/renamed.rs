//! A program that knows Wallaby by other names than `wallaby`. Apart from other tests, as that name is something else in it.

// As with `framework = { package = "wallaby", .. }` in a manifest.
extern crate core as wallaby;
extern crate wallaby as framework;

use framework::{Body, Endpoint, Many, Request, Status, Streaming};

mod facade {
    pub(crate) mod rpc {
        pub(crate) use framework::*;
    }
}

#[framework::service(package = "test", crate = framework)]
trait Sums {
    async fn sum(numbers: Vec<u64>) -> u64;
    async fn parts(numbers: Vec<u64>) -> Many<u64>;
    async fn length(body: Body) -> usize;
}

struct Server;

#[framework::serve(crate = framework)]
impl Sums for Server {
    async fn sum(&self, numbers: Vec<u64>) -> u64 {
        numbers.iter().sum()
    }

    async fn parts(&self, request: Request<Many<u64>>, numbers: Vec<u64>) -> Result<(), Status> {
        for number in numbers {
            request.reply(number).await?;
        }
        Ok(())
    }

    async fn length(&self, mut body: Body) -> Result<usize, Status> {
        let mut length = 0;
        while let Some(chunk) = body.next().await {
            length += chunk?.len();
        }
        Ok(length)
    }
}

/// Its path is found from the scope of the service, not from that of the module beside it; and a module of its own has the name
/// that the path begins with.
mod inner {
    use super::*;

    pub(super) mod own {
        pub(crate) use crate::facade::rpc;
    }

    #[framework::service(package = "test", codec = framework::codec::Raw, crate = self::own::rpc)]
    pub(super) trait Echo {
        async fn echo(bytes: bytes::Bytes) -> bytes::Bytes;
        async fn own(items: Streaming<bytes::Bytes>) -> Many<bytes::Bytes>;
    }

    #[super::facade::rpc::serve(crate = super::facade::rpc)]
    impl Echo for super::Server {
        fn echo(&self, bytes: bytes::Bytes) -> bytes::Bytes {
            bytes
        }

        fn own(
            &self,
            request: Request<Many<bytes::Bytes>, framework::codec::Raw>,
            _: Streaming<bytes::Bytes, framework::codec::Raw>,
        ) {
            drop(request);
        }
    }
}

#[tokio::test]
async fn services_find_the_framework_by_the_path_they_are_given() {
    let builder = Endpoint::builder().listen("mem://renamed");
    let builder = builder.serve(sums::service(Server));
    let server = builder.serve(inner::echo::service(Server)).bind().await;
    let server = server.expect("the address is free");
    let address = server.address().expect("it listens");
    let client = Endpoint::client().expect("an endpoint");

    let sums = sums::at(&client, address);
    assert_eq!(sums.sum(vec![1, 2, 3]).await, Ok(6));
    assert_eq!(sums.length(bytes::Bytes::from("hop")).await, Ok(3));
    let mut parts = sums.fail_fast().parts(vec![4]);
    assert_eq!(parts.next().await.expect("one").expect("a number"), 4);
    let echo = inner::echo::at(&client, address);
    assert_eq!(echo.echo("hop".into()).await.expect("bytes"), "hop");
}
