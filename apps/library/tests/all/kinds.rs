//! A service with all that services from `.proto` files can have does what one that is defined in Rust does.

use prost_types::Timestamp;
use wallaby::codec::Protobuf;
use wallaby::{Address, Endpoint, Many, One, Request, Status, Streaming, items};

mod protos {
    include!(concat!(env!("OUT_DIR"), "/kinds.rs"));
}

use protos::test::kinds::shared::Part;
use protos::test::kinds::v1::tree::{Kind, Leaf};
use protos::test::kinds::v1::{AllKinds, GetTreeRequest, Tree, all_kinds};

/// Forwards to the next one, if there is one.
struct Server(Option<Address>);

#[wallaby::serve]
impl AllKinds for Server {
    async fn get_tree(&self, message: GetTreeRequest) -> Tree {
        Tree {
            leaves: vec![Leaf { colour: 1 }],
            parts: [("trunk".to_owned(), Part { number: 7 })].into(),
            kind: Some(Kind::Name(message.name)),
            planted: None,
            r#match: vec![0xff],
        }
    }

    async fn forward(
        &self,
        request: Request<One<Part>, Protobuf>,
        part: Part,
    ) -> Result<(), Status> {
        let number = part.number + 1;
        match &self.0 {
            Some(next) => {
                request
                    .forward(next, all_kinds::forward(Part { number }))
                    .await?
            }
            None => {
                request
                    .respond(Part {
                        number: number * 100,
                    })
                    .await?
            }
        }
        Ok(())
    }

    async fn list(&self, request: Request<Many<Leaf>, Protobuf>, leaf: Leaf) -> Result<(), Status> {
        if let Some(next) = &self.0 {
            request.delegate(next, all_kinds::list(leaf)).await?;
        }
        Ok(request.respond(leaf).await?)
    }

    async fn load(&self, mut items: Streaming<Tree, Protobuf>) -> Result<u32, Status> {
        let mut leaves = 0;
        while let Some(tree) = items.next().await {
            leaves += tree?.leaves.len() as u32;
        }
        Ok(leaves)
    }

    async fn talk(
        &self,
        request: Request<Many<Part>, Protobuf>,
        mut items: Streaming<Part, Protobuf>,
    ) -> Result<(), Status> {
        while let Some(part) = items.next().await {
            request.reply(part?).await?;
        }
        Ok(())
    }

    async fn ping(&self) {}

    async fn r#type(&self, message: Timestamp) -> Timestamp {
        message
    }
}

#[tokio::test]
async fn methods_of_all_kinds_are_called_delegated_and_forwarded() {
    let server = async |next: Option<&Endpoint>| {
        let next = next.map(|next| next.address().unwrap().clone());
        let builder = Endpoint::builder().listen("tcp://127.0.0.1:0");
        builder
            .serve(all_kinds::service(Server(next)))
            .bind()
            .await
            .unwrap()
    };
    let last = server(None).await;
    let first = server(Some(&last)).await;
    let client = Endpoint::client().unwrap();
    let kinds = all_kinds::at(&client, first.address().unwrap());

    let name = "oak".to_owned();
    let tree = kinds
        .get_tree(GetTreeRequest { name: name.clone() })
        .await
        .unwrap();
    assert_eq!(
        (&tree.kind, &tree.r#match[..]),
        (&Some(Kind::Name(name)), &[0xff][..])
    );
    assert_eq!(tree.parts["trunk"], Part { number: 7 });
    assert_eq!(
        kinds.forward(Part { number: 1 }).await,
        Ok(Part { number: 300 })
    );
    let leaves = kinds.list(Leaf { colour: 5 }).collect().await.unwrap();
    assert_eq!(leaves, [Leaf { colour: 5 }; 2], "one of each server");
    assert_eq!(kinds.load(items([tree.clone(), tree])).await, Ok(2));
    let parts = [1, 2, 3].map(|number| Part { number });
    assert_eq!(kinds.talk(items(parts)).collect().await.unwrap(), parts);
    assert_eq!(kinds.ping().await, Ok(()));
    let now = Timestamp {
        seconds: 1,
        nanos: 2,
    };
    #[expect(deprecated, reason = "the file says so")]
    let told = kinds.r#type(now).await;
    assert_eq!(told, Ok(now));
    assert_eq!(
        all_kinds::GET_TREE.name(),
        "test.kinds.v1.AllKinds/get_tree"
    );
}
