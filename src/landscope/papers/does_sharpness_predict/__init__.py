"""Our own study: does sharpness predict?"""
