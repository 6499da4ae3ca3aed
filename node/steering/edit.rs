//! Changes of the object: one field for an order, so that edits of different orders never meet.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{ORDER_BYTES_MAX, ORDERS_MAX, Order, Orders, Target, Unreadable};

/// A change of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// New values of fields; `None` removes one.
    pub fields: BTreeMap<String, Option<String>>,
}

impl Edit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Removes fields.
    pub fn removing<'a>(fields: impl IntoIterator<Item = &'a str>) -> Self {
        let fields = fields.into_iter().map(|field| (field.to_owned(), None));
        Self {
            fields: fields.collect(),
        }
    }

    /// As a merge patch; with `version` it is refused where the object has another.
    pub fn patch(&self, version: Option<&str>) -> Value {
        let fields = self.fields.iter();
        let data: Map<String, Value> = fields
            .map(|(field, text)| {
                (
                    field.clone(),
                    text.clone().map_or(Value::Null, Value::String),
                )
            })
            .collect();
        match version {
            Some(version) => json!({"metadata": {"resourceVersion": version}, "data": data}),
            None => json!({"data": data}),
        }
    }

    /// What an object without any field has then.
    pub fn data(&self) -> BTreeMap<String, String> {
        let fields = self.fields.iter();
        fields
            .filter_map(|(field, text)| Some((field.clone(), text.clone()?)))
            .collect()
    }
}

/// Why an order is not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It may not be given.
    #[error("{0}")]
    Order(#[from] Unreadable),
    /// There are too many.
    #[error(
        "the fleet has {ORDERS_MAX} orders already: resume, unset, undrain or unmove something first"
    )]
    Full,
}

/// Gives an order; one about the same target is replaced.
///
/// # Errors
/// Why it may not be given.
pub fn place(orders: &Orders, order: &Order) -> Result<Edit, Refused> {
    order.check()?;
    let text = order.written();
    if text.len() > ORDER_BYTES_MAX {
        return Err(Unreadable::Bytes.into());
    }
    let mut edit = lift(orders, &order.target);
    if edit.is_empty() && orders.all.len() >= ORDERS_MAX {
        // What has ended and is still kept makes room.
        let ended = orders
            .all
            .iter()
            .filter(|(_, one)| one.until <= order.since);
        edit = Edit::removing(ended.map(|(field, _)| field.as_str()));
        if edit.is_empty() {
            return Err(Refused::Full);
        }
    }
    edit.fields.insert(order.target.field(), Some(text));
    Ok(edit)
}

/// Takes an order back, by whichever fields it was given.
pub fn lift(orders: &Orders, target: &Target) -> Edit {
    let fields = orders.all.iter();
    Edit::removing(
        fields
            .filter(|(_, order)| order.target == *target)
            .map(|(field, _)| field.as_str()),
    )
}

/// The name that is most alike, where one is.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below it names have little in common.
    const ALIKE: f64 = 0.8;
    let scored = known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(name, known), known));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(score, _)| *score >= ALIKE)
        .map(|(_, known)| known)
}
