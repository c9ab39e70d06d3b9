"""ONNX files: building and inspecting."""
