"""What looks at each layer, one module a layer, named after it. Import as tokentrace.probes."""
