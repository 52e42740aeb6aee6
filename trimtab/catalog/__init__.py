"""What exists?"""
