//! Takes an order's items from the stock and publishes the shipment. Both happen or neither: the stock never falls without a
//! shipment, and no order is shipped twice.

use hapax_guest::outbox::Outgoing;
use hapax_guest::{Failure, Message, params, sql};

#[derive(serde::Deserialize, serde::Serialize)]
struct Order {
    order: String,
    item: String,
    quantity: i64,
}

fn handle(message: Message) -> Result<(), Failure> {
    let order: Order = message.json()?;
    if order.quantity < 1 {
        return Err(Failure::reject(format!(
            "order `{}`: `{}` is no quantity",
            order.order, order.quantity
        )));
    }
    let taken = sql::execute(
        "UPDATE stock SET quantity = quantity - $1 WHERE item = $2 AND quantity >= $1",
        &params![order.quantity, order.item.as_str()],
    )?;
    if taken == 0 {
        return Err(Failure::reject(format!(
            "order `{}`: fewer than {} of `{}` are in stock",
            order.order, order.quantity, order.item
        )));
    }
    // Shipments of one item leave in the order in which the stock fell.
    Outgoing::new("shipments")
        .key(order.item.as_str())
        .json(&order)?
        .publish()?;
    Ok(())
}

hapax_guest::handler!(handle);
