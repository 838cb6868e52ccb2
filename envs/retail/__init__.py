"""A shop's back office: tools over users, products and orders, in tau2-bench's schema, and customers who write."""
