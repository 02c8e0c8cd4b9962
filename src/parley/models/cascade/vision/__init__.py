"""What a picture shows, as one sentence: drawn shapes by rule, photographs by a classifier."""
