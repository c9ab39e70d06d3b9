/* Attributes of single operators. There are no single operators here: the calls exist so that consumers which link to
 * them can be loaded, and every one says no.
 */
#include "sim.h"

static aclError refuse(const char *function)
{
    return sim_fail(ACL_ERROR_API_NOT_SUPPORT, "EH0006", "Not_Supported", "%s: single operators are not simulated", function);
}

SIM_API aclopAttr *aclopCreateAttr(void)
{
    ENTER_OR(NULL);
    refuse(__func__);
    return NULL;
}

SIM_API void aclopDestroyAttr(const aclopAttr *attr)
{
    (void)attr;
    sim_enter(__func__);
}

SIM_API aclError aclopSetAttrBool(aclopAttr *attr, const char *attrName, uint8_t attrValue)
{
    ENTER();
    (void)attr, (void)attrName, (void)attrValue;
    return refuse(__func__);
}

SIM_API aclError aclopSetAttrInt(aclopAttr *attr, const char *attrName, int64_t attrValue)
{
    ENTER();
    (void)attr, (void)attrName, (void)attrValue;
    return refuse(__func__);
}

SIM_API aclError aclopSetAttrFloat(aclopAttr *attr, const char *attrName, float attrValue)
{
    ENTER();
    (void)attr, (void)attrName, (void)attrValue;
    return refuse(__func__);
}

SIM_API aclError aclopSetAttrString(aclopAttr *attr, const char *attrName, const char *attrValue)
{
    ENTER();
    (void)attr, (void)attrName, (void)attrValue;
    return refuse(__func__);
}

SIM_API aclError aclopSetAttrListInt(aclopAttr *attr, const char *attrName, int numValues, const int64_t *values)
{
    ENTER();
    (void)attr, (void)attrName, (void)numValues, (void)values;
    return refuse(__func__);
}
