"""What shall run where?"""
