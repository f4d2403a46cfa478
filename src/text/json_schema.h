/* JSON Schema, as far as a reward needs it: whether a value is of a form.
 *
 * Keywords: type, enum, const, properties, required, additionalProperties, minProperties, maxProperties, items,
 * minItems, maxItems, minLength, maxLength (in code points), pattern (PCRE2 syntax, found anywhere), minimum, maximum,
 * exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, allOf, oneOf, not; true and false as schemas. $schema, $id,
 * title, description, default, examples and $comment say nothing about values. Every other keyword is refused by name
 * when the schema is read, so that no rule is passed over. Numbers are compared as decimals with all their digits
 * (json/json_decimal.h): 0.3 is a multiple of 0.1. A step of multipleOf has at most 18 digits, an exponent at most 15;
 * others are refused. An integer is a number without a fraction. Patterns that give up on a text do not match it. */
#ifndef LS_TEXT_JSON_SCHEMA_H
#define LS_TEXT_JSON_SCHEMA_H

#include "base/status.h"

typedef struct ls_json_schema ls_json_schema;

/* `name` stands for the file in errors. */
ls_status ls_json_schema_parse(ls_json_schema **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_json_schema_free(ls_json_schema *schema); /* accepts NULL */
/* Whether the text is one JSON value of this form; what it lacks is in err. Only LS_ERR_NOMEM is a failure of its own.
 */
bool ls_json_schema_accepts(const ls_json_schema *schema, const char *text, int64_t bytes, ls_error *err);

#endif
