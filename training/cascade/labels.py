"""Some everyday things of the photograph classes, as the eyes would name them."""

SOME_LABELS = (
    "daisy|golden retriever|tabby cat|banana|coffee mug|laptop|teapot|umbrella|bookcase|sports car|"
    "sunglasses|guitar|violin|lemon|strawberry|pizza|cheeseburger|goldfish|zebra|elephant|tiger|"
    "penguin|peacock|mountain bike|sailboat|castle|lighthouse|church|bridge|piano|clock|candle|"
    "backpack|running shoe|teddy bear|desk|rocking chair|mushroom|broccoli|orange|pineapple|balloon"
).split("|")
