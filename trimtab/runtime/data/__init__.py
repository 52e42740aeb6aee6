"""Which tokens does step s train on?"""
