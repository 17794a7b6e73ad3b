//! Books a shipment that another handler published. Running it twice would book it twice: the id of a published message is the
//! same whenever it leaves, so the host lets it take effect once.

use hapax_guest::{Failure, Message, params, sql};

#[derive(serde::Deserialize)]
struct Shipment {
    order: String,
    item: String,
    quantity: i64,
}

fn handle(message: Message) -> Result<(), Failure> {
    let shipment: Shipment = message.json()?;
    sql::execute(
        "INSERT INTO shipments (order_id, item, quantity) VALUES ($1, $2, $3)",
        &params![shipment.order, shipment.item, shipment.quantity],
    )?;
    Ok(())
}

hapax_guest::handler!(handle);
