// Package v2 registers objects of YAML manifests.
package v2

import (
	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/apiextensions"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// RegisterResource registers an object of any kind as a resource of its type token, with outputs of
// the Go type that the SDK has for custom resources.
//
// The SDK's function has a case for each built-in kind, which only chooses the Go type of the
// outputs. The provider does not read them.
func RegisterResource(
	ctx *pulumi.Context, apiVersion, kind, name string, props pulumi.Input,
	opts ...pulumi.ResourceOption,
) (pulumi.CustomResource, error) {
	if apiVersion == "v1" {
		apiVersion = "core/v1"
	}
	var registered apiextensions.CustomResource
	token := "kubernetes:" + apiVersion + ":" + kind
	if err := ctx.RegisterResource(token, name, props, &registered, opts...); err != nil {
		return nil, err
	}
	return &registered, nil
}
