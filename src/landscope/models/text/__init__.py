"""Networks for text, called as `model(**tokenize(texts))`."""

from landscope.models.text.bert import BertClassifier
from landscope.models.text.tokens import tokenize

__all__ = ["BertClassifier", "tokenize"]
