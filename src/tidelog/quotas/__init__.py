"""Client quotas: who has which, and what is over it. Pure: time is passed in, in milliseconds that never go back."""
