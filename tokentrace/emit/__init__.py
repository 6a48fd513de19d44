"""Ways out of a Trace. Nothing else speaks OTLP, Jaeger, Perfetto or HTML."""
