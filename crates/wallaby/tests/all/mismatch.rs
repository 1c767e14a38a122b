//! Both sides know a method by its name, but not by the same types: nobody misreads anything.

use crate::common::{Net, at, client, patience, service, sorted, status, until, work};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::intercept::{Admission, Incoming, Interceptor};
use wallaby::{Code, Many, Method, MethodDefinition, One, Request, Status};

over_every_transport!(
    other_types_are_a_status,
    another_codec_is_a_status,
    a_delegation_to_other_types_is_a_status,
    whoever_says_nothing_of_types_is_served,
);

mod old {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Document {
        pub(super) id: u64,
        pub(super) title: String,
    }

    #[wallaby::service(package = "test")]
    pub(super) trait Library {
        async fn fetch(id: u64) -> Document;
        async fn store(document: Document) -> u64;
        async fn list() -> Many<Document>;
    }
}

mod new {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Document {
        pub(super) id: u64,
        pub(super) year: u16,
        pub(super) title: String,
    }

    #[wallaby::service(package = "test")]
    pub(super) trait Library {
        async fn fetch(id: u64) -> Document;
        async fn store(document: Document) -> u64;
        async fn list() -> Many<Document>;
    }
}

struct Shelf;

#[wallaby::serve]
impl old::Library for Shelf {
    async fn fetch(&self, id: u64) -> old::Document {
        old::Document {
            id,
            title: "old".into(),
        }
    }

    async fn store(&self, document: old::Document) -> u64 {
        document.id
    }

    async fn list(&self, request: Request<Many<old::Document>>) -> Result<(), Status> {
        Ok(request
            .respond(old::Document {
                id: 1,
                title: "old".into(),
            })
            .await?)
    }
}

fn is_mismatch(status: &Status, method: &str, what: &str) {
    assert_eq!(status.code(), Code::Mismatch, "{status}");
    assert!(
        status.message().contains(method) && status.message().contains(what),
        "{status}"
    );
}

async fn other_types_are_a_status(net: Net) {
    let server = net.serve(old::library::service(Shelf)).await;
    let client = client();
    let new = new::library::at(&client, at(&server));
    is_mismatch(&status(new.fetch(1).await), "test.Library/fetch", "answer");
    let document = new::Document {
        id: 1,
        year: 2,
        title: "new".into(),
    };
    let refused = status(new.store(document).await);
    is_mismatch(&refused, "test.Library/store", "arguments");
    assert_eq!(refused.server(), server.address());
    is_mismatch(
        &status(new.list().next().await.expect("a status")),
        "test.Library/list",
        "answer",
    );

    // Over the same connection, for those who mean the same.
    let same = old::library::at(&client, at(&server));
    assert_eq!(
        same.fetch(7).await,
        Ok(old::Document {
            id: 7,
            title: "old".into()
        })
    );
    assert_eq!(client.metrics().connections_opened, 1);
    assert_eq!(server.metrics().panics, 0);
}

async fn another_codec_is_a_status(net: Net) {
    static BYTES: Method<(Bytes,), One<Bytes>, wallaby::codec::Raw> = Method::new("test.Work/one");
    let server = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    let server = net.serve(server).await;
    let client = client();
    let call = wallaby::Client::new(&client, at(&server)).call(&BYTES, (Bytes::from_static(b"x"),));
    let refused = status(call.await);
    is_mismatch(&refused, "test.Work/one", "raw");
    assert!(refused.message().contains("postcard"), "{refused}");
}

async fn a_delegation_to_other_types_is_a_status(net: Net) {
    let leaf = net.serve(old::library::service(Shelf)).await;
    let next = at(&leaf);
    let root = service().method(&new::library::LIST, move |request: Request<Many<_>>, ()| {
        let next = next.clone();
        async move {
            request.delegate(&next, new::library::fetch(1)).await?;
            request.delegate(&next, new::library::list()).await?;
            Ok(request
                .respond(new::Document {
                    id: 0,
                    year: 1,
                    title: "mine".into(),
                })
                .await?)
        }
    });
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let mut call = new::library::at(&endpoint, at(&root)).list();
    let (mut answers, mut statuses) = (Vec::new(), Vec::new());
    while let Some(item) = call.next().await {
        match item {
            Ok(answer) => answers.push(answer),
            other => statuses.push(status(other)),
        }
    }
    assert_eq!(answers.len(), 1);
    assert_eq!(statuses.len(), 2);
    for status in statuses {
        is_mismatch(&status, "test.Library", "answer");
        assert_eq!(status.server(), leaf.address());
    }
}

/// Tools and other languages need not know fingerprints: 0 fits any.
async fn whoever_says_nothing_of_types_is_served(net: Net) {
    let server = net.serve(old::library::service(Shelf)).await;
    let client = client();
    let method = MethodDefinition::new("test.Library/fetch", "postcard", 0, 0).expect("a name");
    let mut call = wallaby::Client::new(&client, at(&server))
        .call_raw(&method.into(), Bytes::from_static(&[7]));
    let answer = call.next().await.expect("an answer").expect("an answer");
    assert_eq!(
        answer.payload,
        Bytes::from_static(&[7, 3, b'o', b'l', b'd'])
    );
    assert!(call.next().await.is_none());
}

/// A method that answers one is not one that answers many of the same type.
#[tokio::test]
async fn how_many_answers_there_are_is_the_initiators_business() {
    static ONE_AS_MANY: Method<(String,), Many<String>> = Method::new("test.Work/one");
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        });
        let server = net.serve(server).await;
        let client = client();
        let mut call = wallaby::Client::new(&client, at(&server)).call(&ONE_AS_MANY, ("x".into(),));
        let (answers, _) = sorted(&mut call).await;
        assert_eq!(answers, ["x"]);
        until(|| server.load().is_idle()).await;
    })
    .await;
}

/// Of types with fields that the other side does not have, both are told, and only these.
#[tokio::test]
async fn a_mismatch_says_what_differs() {
    let net = Net::mem();
    let (client, told) = (client(), "(fingerprints ");
    let server = net.serve(old::library::service(Shelf)).await;
    let refused = status(new::library::at(&client, at(&server)).fetch(1).await);
    let (what, differs) = refused
        .message()
        .split_once(told)
        .expect("which fingerprints");
    assert!(
        what.contains("test.Library/fetch") && what.contains("answer"),
        "{refused}"
    );
    let differs = differs.split_once("definition? ").expect("what differs").1;
    assert_eq!(
        differs,
        "The server has struct Document { id: u64, title: String }, the caller struct Document { id: u64, year: u16, title: \
         String }"
    );
    // Whoever calls without types reads what the server has.
    let method = MethodDefinition::new("test.Library/fetch", "postcard", 1, 1).expect("a name");
    let mut call = wallaby::Client::new(&client, at(&server))
        .call_raw(&method.into(), Bytes::from_static(&[7]));
    let refused = status(call.next().await.expect("a status"));
    assert!(
        refused.message().ends_with(
            "The server has (u64) -> Document; struct Document { id: u64, title: String }"
        ),
        "{refused}"
    );
    // One that tells nobody what it serves does not tell it so either, nor one that asks first who may call.
    let shelf = || wallaby::Endpoint::builder().serve(old::library::service(Shelf));
    for silent in [shelf().reflection(false), shelf().interceptor(Guard)] {
        let silent = net.bind(silent).await;
        let refused = status(new::library::at(&client, at(&silent)).fetch(1).await);
        is_mismatch(&refused, "test.Library/fetch", "answer");
        assert!(!refused.message().contains("Document"), "{refused}");
    }
}

struct Guard;

impl Interceptor for Guard {
    fn admit(&self, _: &Incoming) -> Admission {
        Admission::Refuse(Status::permission_denied("nobody may call"))
    }
}

/// Two versions of a program, as they run side by side while one is deployed.
mod versions {
    use super::*;
    use wallaby::codec::MessagePack;

    pub(super) mod first {
        use super::*;

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) struct Query {
            pub(crate) text: String,
            pub(crate) fuzzy: Option<bool>,
        }

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) enum Hit {
            Exact { document: u32 },
            None,
        }

        #[wallaby::service(package = "test", codec = MessagePack)]
        pub(crate) trait Search {
            async fn find(query: Query) -> Hit;
        }
    }

    pub(super) mod second {
        use super::*;

        /// `fuzzy` is gone, the order is another one, and two fields are new.
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) struct Query {
            pub(crate) limit: Option<u32>,
            #[serde(default = "everywhere")]
            pub(crate) within: String,
            pub(crate) text: String,
        }

        fn everywhere() -> String {
            "everywhere".into()
        }

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) enum Hit {
            None,
            Exact {
                document: u64,
                #[serde(default)]
                rank: u32,
            },
            Similar(String),
        }

        #[wallaby::service(package = "test", codec = MessagePack)]
        pub(crate) trait Search {
            async fn find(query: Query) -> Hit;
        }
    }
}

use versions::{first, second};

/// In these versions `fuzzy` has another name: one reads what it knows, one refuses the rest, one keeps the old name on the wire.
macro_rules! renamed {
    ($($version:ident: $(#[$of_type:meta])* $field:ident $(#[$of_field:meta])*;)*) => { $(
        mod $version {
            use serde::{Deserialize, Serialize};
            use wallaby::codec::MessagePack;

            #[derive(Debug, PartialEq, Serialize, Deserialize)]
            $(#[$of_type])*
            pub(super) struct Query {
                text: String,
                $(#[$of_field])*
                $field: Option<bool>,
            }

            #[wallaby::service(package = "test", codec = MessagePack)]
            pub(super) trait Search {
                async fn find(query: Query) -> super::first::Hit;
            }

            pub(super) struct Server;

            #[wallaby::serve]
            impl Search for Server {
                async fn find(&self, query: Query) -> super::first::Hit {
                    let document = query.$field.map_or(0, |vague| 1 + u32::from(vague));
                    super::first::Hit::Exact { document }
                }
            }
        }
    )* };
}

renamed! {
    lax: vague;
    strict: #[serde(deny_unknown_fields)] vague;
    faithful: vague #[serde(rename = "fuzzy")];
}

#[tokio::test]
async fn a_field_with_another_name_is_missing_or_refused_as_the_type_says() {
    let net = Net::mem();
    let client = client();
    let find = async |server: wallaby::Service| {
        let server = net.serve(server).await;
        let query = first::Query {
            text: "hop".into(),
            fuzzy: Some(true),
        };
        first::search::at(&client, at(&server)).find(query).await
    };
    let found = |document| Ok(first::Hit::Exact { document });
    assert_eq!(
        find(lax::search::service(lax::Server)).await,
        found(0),
        "None, and nobody is told"
    );
    let refused = status(find(strict::search::service(strict::Server)).await);
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("unknown field `fuzzy`"),
        "{refused}"
    );
    let faithful = find(faithful::search::service(faithful::Server)).await;
    assert_eq!(faithful, found(2));
}

struct First;

#[wallaby::serve]
impl first::Search for First {
    async fn find(&self, query: first::Query) -> first::Hit {
        match &*query.text {
            "hop" => first::Hit::Exact {
                document: u32::from(query.fuzzy.unwrap_or(true)),
            },
            _ => first::Hit::None,
        }
    }
}

struct Second;

#[wallaby::serve]
impl second::Search for Second {
    async fn find(&self, query: second::Query) -> second::Hit {
        match &*query.text {
            "hop" => second::Hit::Exact {
                document: query.limit.map_or(0, u64::from),
                rank: query.within.len() as u32,
            },
            "wide" => second::Hit::Exact {
                document: u64::MAX,
                rank: 0,
            },
            _ => second::Hit::Similar("jump".into()),
        }
    }
}

#[tokio::test]
async fn programs_of_two_versions_understand_each_other() {
    let net = Net::mem();
    let older = net.serve(first::search::service(First)).await;
    let newer = net.serve(second::search::service(Second)).await;
    let client = client();
    // Not deployed yet: the newer caller, the older server.
    let ahead = second::search::at(&client, at(&older));
    let asks = |text: &str| second::Query {
        limit: Some(5),
        within: "titles".into(),
        text: text.into(),
    };
    let hit = ahead.find(asks("hop")).await;
    assert_eq!(
        hit,
        Ok(second::Hit::Exact {
            document: 1,
            rank: 0
        })
    );
    assert_eq!(ahead.find(asks("?")).await, Ok(second::Hit::None));
    // Deployed already: the older caller, the newer server.
    let behind = first::search::at(&client, at(&newer));
    let asks = |text: &str| first::Query {
        text: text.into(),
        fuzzy: Some(true),
    };
    let hit = behind.find(asks("hop")).await;
    assert_eq!(hit, Ok(first::Hit::Exact { document: 0 }));
    // What the older one has no words for is an error that says so, of that answer alone.
    for (text, what) in [("?", "Similar"), ("wide", "u32")] {
        let error = behind
            .find(asks(text))
            .await
            .expect_err("it cannot be read");
        assert!(matches!(error, wallaby::CallError::Decode(_)), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!(behind.find(asks("hop")).await.is_ok());
}
