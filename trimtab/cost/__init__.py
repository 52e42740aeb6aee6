"""What would it cost?"""
