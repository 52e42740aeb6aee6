"""What should be done now?"""
