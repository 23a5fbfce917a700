// Command pulumi-resource-kubernetes is Pulumi's provider for Kubernetes.
//
// The provider's module holds its schema without a version, and its own main expects a file that a
// generation step makes. Here the version is set when the provider starts.
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

//go:embed schema.json
var schema []byte

//go:embed terraform-mapping.json
var mapping []byte

func main() {
	versioned := append([]byte(`{"version":"`+version.Version+`",`), schema[1:]...)
	provider.Serve("kubernetes", version.Version, versioned, mapping)
}
