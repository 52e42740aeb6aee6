"""How is a plan carried out on torch, operator by operator, and is it what one device computes?"""
