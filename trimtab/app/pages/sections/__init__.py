"""The sections of an explanation's page: each takes the document and gives one piece of markup."""
