//! Secrets, in the selections that controllers read: the API server is asked for one type at a time, so that
//! no other Secret is ever held. Their contents are [`Confidential`].

use std::collections::BTreeMap;

use prost::{
    DecodeError,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType},
};

use crate::{
    Confidential, Selection,
    message::{Field, Maybe, Word, message},
    meta::ObjectMeta,
    object::selected,
};

/// A `map<string, bytes>` whose values are confidential.
pub struct Contents;

type Held = BTreeMap<String, Confidential>;

fn write_value(tag: u32, value: &Confidential, buf: &mut impl BufMut) {
    encoding::bytes::encode(tag, value.bytes(), buf);
}

fn value_len(tag: u32, value: &Confidential) -> usize {
    encoding::bytes::encoded_len(tag, value.bytes())
}

impl Field for Contents {
    type Held = Held;
    fn encode(tag: u32, held: &Held, mut buf: &mut impl BufMut) {
        encoding::btree_map::encode(
            encoding::string::encode,
            encoding::string::encoded_len,
            write_value,
            value_len,
            tag,
            held,
            &mut buf,
        );
    }
    fn merge(
        _: u32,
        _: WireType,
        held: &mut Held,
        mut buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        encoding::btree_map::merge(
            encoding::string::merge,
            |wire_type, value: &mut Confidential, buf, ctx| {
                encoding::bytes::merge(wire_type, value.bytes_mut(), buf, ctx)
            },
            held,
            &mut buf,
            ctx,
        )
    }
    fn len(tag: u32, held: &Held) -> usize {
        encoding::btree_map::encoded_len(encoding::string::encoded_len, value_len, tag, held)
    }
}

/// A Secret of one type.
macro_rules! secret {
    ($(#[$doc:meta])* $name:ident, $type:literal, $selection:expr) => {
        message! {
            $(#[$doc])*
            pub struct $name {
                /// Its metadata.
                1 metadata: Maybe<ObjectMeta>,
                /// What it holds.
                2 data: Contents,
                /// Its type, which is the selection's.
                3 r#type: Word,
            }
        }

        impl $name {
            /// The type of all of them.
            pub const TYPE: &'static str = $type;
        }

        selected!($name, "", "v1", "Secret", "secrets", true, $selection);
    };
}

secret! {
    /// A Secret of type `kubernetes.io/service-account-token`, of any namespace.
    ServiceAccountToken,
    "kubernetes.io/service-account-token",
    Selection {
        name: "service-account-token",
        namespace: "",
        fields: "type=kubernetes.io/service-account-token",
    }
}

secret! {
    /// A Secret of type `bootstrap.kubernetes.io/token` in kube-system.
    BootstrapToken,
    "bootstrap.kubernetes.io/token",
    Selection {
        name: "bootstrap-token",
        namespace: "kube-system",
        fields: "type=bootstrap.kubernetes.io/token",
    }
}
